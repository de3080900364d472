"""What earlier attempts of a request delivered: its resume log, then the frames before the fence.

Pure functions over records; ``headrace_transport.claims`` reads what they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, RowFinish

from headrace_transport.columns import REASONS
from headrace_transport.interface import FIRST_FRAME, FrameId, OutEntry


@dataclass(slots=True)
class Delivered:
    """Tokens and ends per choice, as far as they are known."""

    tokens: list[list[int]]
    ends: dict[int, RowFinish] = field(default_factory=dict[int, RowFinish])
    logged: list[int] = field(default_factory=list[int])
    """Tokens per choice that the log holds."""
    logged_ends: set[int] = field(default_factory=set[int])
    foreign_version: int | None = None
    """Wire version of a log that cannot be read here."""

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return len(self.ends) == len(self.tokens)

    def put(self, choice: int, first: int, tokens: Sequence[int]) -> None:
        """Adds a row; what is known already stays, and a row beyond the end is not believed."""
        known = self.tokens[choice]
        if choice not in self.ends and first <= len(known) < first + len(tokens):
            known.extend(tokens[len(known) - first :])


def from_log(n: int, entries: Iterable[LogEntry]) -> Delivered:
    """What the log holds of ``n`` choices."""
    found = Delivered(tokens=[[] for _ in range(n)])
    for entry in entries:
        at = 0
        for choice, first, count in zip(entry.choices, entry.firsts, entry.counts, strict=True):
            if choice < n:
                found.put(choice, first, entry.tokens[at : at + count])
            at += count
        for finish in entry.finishes:
            choice = entry.choices[finish.row]
            if choice < n:
                found.ends.setdefault(choice, finish)
    found.logged = [len(tokens) for tokens in found.tokens]
    found.logged_ends = set(found.ends)
    return found


def frames_from(n: int, entries: Iterable[LogEntry]) -> FrameId:
    """The newest frame before which no frame can hold what the log lacks."""
    newest: dict[int, FrameId] = {}
    for entry in entries:
        for choice in entry.choices:
            newest[choice] = FrameId(entry.frame_id or FIRST_FRAME)
    if any(choice not in newest for choice in range(n)):
        return FIRST_FRAME
    return min((newest[choice] for choice in range(n)), key=frame_order)


def frame_order(frame: str) -> tuple[int, int]:
    """Sorts frame ids."""
    ms, _, number = frame.partition("-")
    return int(ms), int(number or 0)


def add_frames(
    found: Delivered, entries: Iterable[OutEntry], *, slot: int, attempt: int, before: int
) -> None:
    """Adds rows of slots ``slot``..: those the gateway believed.

    ``attempt`` is the oldest attempt that may count; a fence raises it, as it does at the
    gateway. Rows of attempts from ``before`` on are not the past.
    """
    slots = range(slot, slot + len(found.tokens))
    oldest = attempt
    for entry in entries:
        match entry.item:
            case Fence():
                if entry.item.slot == slot:
                    oldest = max(oldest, entry.item.attempt)
            case Frame():
                _add_frame(found, entry.item, slots, range(oldest, before))
            case None:
                pass  # its reader did not believe it either


def _add_frame(found: Delivered, frame: Frame, slots: range, attempts: range) -> None:
    rows: dict[int, int] = {}
    at = 0
    for row, slot in enumerate(frame.slots):
        count = frame.counts[row]
        if slot in slots and frame.attempts[row] in attempts:
            choice = slot - slots.start
            found.put(choice, frame.firsts[row], frame.tokens[at : at + count])
            rows[row] = choice
        at += count
    for finish in frame.finishes:
        if finish.row in rows and finish.reason in REASONS:  # its reader believes no other either
            found.ends.setdefault(rows[finish.row], finish)


def missing_entry(found: Delivered, *, attempt: int, frame: FrameId) -> LogEntry | None:
    """The log entry that makes the log hold all that was delivered, or None."""
    entry = LogEntry(version=WIRE_VERSION, attempt=attempt, frame_id=frame)
    for choice, tokens in enumerate(found.tokens):
        first = found.logged[choice]
        end = found.ends.get(choice) if choice not in found.logged_ends else None
        if first == len(tokens) and end is None:
            continue
        if end is not None:
            add_finish(entry, len(entry.choices), end)
        entry.choices.append(choice)
        entry.firsts.append(first)
        entry.counts.append(len(tokens) - first)
        entry.tokens.extend(tokens[first:])
    return entry if entry.choices else None


def add_finish(into: LogEntry | Frame, row: int, finish: RowFinish) -> None:
    """Copies a terminal row to another row number."""
    copy = into.finishes.add()
    copy.CopyFrom(finish)
    copy.row = row


def ended_entries(found: Delivered, *, attempt: int) -> Mapping[int, LogEntry]:
    """The terminal rows, each as an entry of its own."""
    ended: dict[int, LogEntry] = {}
    for choice, finish in found.ends.items():
        entry = LogEntry(version=WIRE_VERSION, attempt=attempt)
        entry.choices.append(choice)
        entry.firsts.append(len(found.tokens[choice]))
        entry.counts.append(0)
        add_finish(entry, 0, finish)
        ended[choice] = entry
    return ended
