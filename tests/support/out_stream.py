"""What a gateway makes of its out stream: fences, and no token twice or missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Fence, Frame


class OutStream:
    """Entries of one gateway, put together as a gateway would: fences hold back what is stale."""

    def __init__(
        self, entries: Sequence[Frame | Fence], known: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """``known`` tokens by slot were received elsewhere, before a resume."""
        self.frames = [entry for entry in entries if isinstance(entry, Frame)]
        self.tokens = {slot: list(tokens) for slot, tokens in (known or {}).items()}
        """By slot; a token that comes twice must come alike."""
        self.finishes: dict[int, FinishReason] = {}
        self.codes: dict[int, int] = {}
        self.messages: dict[int, str] = {}
        self._least: dict[int, int] = {}
        for entry in entries:
            if isinstance(entry, Frame):
                self._add(entry)
            else:
                for slot in range(entry.slot, entry.slot + entry.n):
                    self._least[slot] = entry.attempt

    def _add(self, frame: Frame) -> None:
        offset = 0
        for row, slot in enumerate(frame.slots):
            first, count = frame.firsts[row], frame.counts[row]
            tokens = list(frame.tokens[offset : offset + count])
            offset += count
            if frame.attempts[row] >= self._least.get(slot, 0):
                self._tell(slot, first, tokens)
        for finish in frame.finishes:
            slot = frame.slots[finish.row]
            if frame.attempts[finish.row] < self._least.get(slot, 0):
                continue
            self.finishes.setdefault(slot, FinishReason(finish.reason))
            self.codes[slot] = finish.code
            self.messages[slot] = finish.message

    def _tell(self, slot: int, first: int, tokens: list[int]) -> None:
        told = self.tokens.setdefault(slot, [])
        assert first <= len(told), f"a gap before {first} in slot {slot}"
        overlap = told[first : first + len(tokens)]
        assert tokens[: len(overlap)] == overlap, "a token was decided again"
        told += tokens[len(overlap) :]
