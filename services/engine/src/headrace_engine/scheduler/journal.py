"""Journal: what the scheduler was told, and a hash of every plan it made of that.

Owner    engine thread; others may read it once that thread has ended
Writes   its own bounded ring
Never    changes a decision; reads a clock; holds a token id unless a sink wants them
Rules    journal.bounded, journal.keys-only, journal.every-input
Next     headrace_engine.scheduler.journal_replay

A record is a tuple. Its first element says what it is:

    ("a", now_s, Arrival)                   a sequence begins to wait
    ("e", now_s, number, reason, failed, generated)   it has its end; failed: its numbers were wrong
    ("x", now_s, number)                    one that had ended turned out to have computed what is wrong
    ("r", now_s)                            what ended is released, as far as nothing is in flight
    ("p", now_s, hash, decode, packed)      a pass: slots that decode (None: as in the pass before)
                                            and everything else of the plan, see ``pack``
    ("d", now_s, tokens)                    the oldest batch came back; tokens only for a sink
    ("c", now_s)                            a batch had come back then, on the clock of rank 0: what a step
                                            with a target is paced by
    ("k", [(number, block, key), ...])      keys that blocks got, or were refused, since the last "k"
    ("l", [(number, maker, common), ...])   searches for a sibling since the last "l": who made the block
                                            that was found (0: none was), and its tokens in common
    ("s", now_s)                            a pass began that never came to a plan: the engine broke
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable
from collections.abc import Sequence as Many
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
from headrace_contracts.prefix_key import PrefixKey
from numpy.typing import NDArray

from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.grant import MemoryOp
from headrace_engine.scheduler.reasons import Reason
from headrace_engine.scheduler.residents import Residents
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchOutput
from headrace_engine.state.request import MediaSpan
from headrace_engine.state.sequence import Sequence

Record = tuple[Any, ...]
"""See the module's header."""

State = dict[str, Any]
"""A scheduler between two passes, as ``journal_snapshot.Snapshot`` gives it. JSON as it stands."""

Making = Generator[None, None, State]
"""Makes a state, a little with each step."""

BLOCKS_A_PASS = 200
"""Of a snapshot: less than 100 us."""
ALL_BLOCKS = 1 << 62
"""Of a snapshot that may take no longer."""
REASONS = tuple(Reason)
CHUNK_FIELDS = 6
"""number, slot, begin, end, store_from, flags (1: starts, 2: generates)."""
COPY_FIELDS = 4
"""source, target and size in bytes, and whether it is done after the forward."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a scheduler was made with."""

    settings: SchedulerSettings
    block_bytes: int
    weights_version: str
    kv_dtype: str
    state_parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A sequence as the scheduler sees it: lengths and whose it is, no content."""

    number: int
    choice: int
    id: str
    tenant: str
    band: int
    salt: str
    """Digest of the cache salt, in hex; empty without one."""
    length: int
    """Known tokens: the prompt, and what an earlier attempt generated."""
    prompt_tokens: int
    limit: int
    arrived_s: float
    deadline_s: float | None
    media: tuple[tuple[int, int, bool], ...] = ()
    """(first, end, whether it has a fingerprint) of each item."""


Part = list[Any] | dict[Any, Any]


@dataclass(slots=True)
class Segment:
    """Records that follow one known state."""

    origin: Origin
    passes: int
    """Passes made before it."""
    start: State | Callable[[], Making] | None
    """A state, or what makes one when somebody reads it; None: a fresh scheduler's."""
    records: list[Record] = field(default_factory=list[Record])
    weight: int = 0
    """Bytes that the records hold, estimated."""
    parts: list[Part] = field(default_factory=list[Part])
    """Of what ``start`` makes its state of, whatever may be large."""
    making_for: int = 0
    """How many are having the state made."""

    @property
    def state(self) -> State | None:
        """The state it begins with; None for a fresh scheduler."""
        if callable(self.start):
            self.start = made(self.start())
        return self.start

    def making(self) -> Generator[None, None, State | None]:
        """As ``state``, made a little with each step, for the caller alone."""
        if callable(self.start):
            self.making_for += 1
            try:
                return (yield from self.start())
            finally:
                self.making_for -= 1
        return deepcopy(self.start)


def made(making: Making) -> State:
    """The state, all at once."""
    while True:
        try:
            next(making)
        except StopIteration as end:
            return end.value


class Snapshot(Protocol):
    """A scheduler's state, taken, and not yet made into what can be written."""

    def making(self) -> Making:
        """As JSON has it."""
        ...

    def parts(self) -> list[Part]:
        """Whatever of it may be large."""
        ...


class Taking(Protocol):
    """A state that is being taken, over some passes."""

    def advance(self, blocks: int) -> bool:
        """Looks at so many more blocks. True: all were seen."""
        ...

    def planned(self, plan: PassPlan, ops: Many[MemoryOp]) -> None:
        """A pass has its effects."""
        ...

    def finish(self) -> Snapshot:
        """The state as it is now."""
        ...


class JournalSink(Protocol):
    """Where records go besides the ring: a file, where somebody asked for one."""

    @property
    def full(self) -> bool:
        """Whether a new segment should begin."""
        ...

    @property
    def overdue(self) -> bool:
        """Whether it must begin now, whatever that costs the pass."""
        ...

    def begin(self, segment: Segment) -> None:
        """A segment begins."""
        ...

    def advance(self) -> None:
        """A pass begins: a little of what is still to be written can be."""
        ...

    def put(self, record: Record, tokens: NDArray[np.int32] | None) -> None:
        """A record, with the token ids that belong to it."""
        ...


class Journal:
    """The ring: the newest segment and the one before it.

    Invariants
        replaying a segment from its state gives every hash in it
        at most two segments, each of half of ``limit_bytes``, a quarter of that for what comes while the next
            snapshot is taken, what one pass adds, and one snapshot; and what is left of a third
    """

    __slots__ = ("_begun_s", "_blocks_a_pass", "_decode_digest", "_half", "_in_flight", "_origin", "_remains", "_sink", "_slots",
                 "_take", "_taking", "likened", "named", "segments")  # fmt: skip

    def __init__(
        self,
        limit_bytes: int = 32 << 20,
        sink: JournalSink | None = None,
        *,
        blocks_a_pass: int = BLOCKS_A_PASS,
    ) -> None:
        """``blocks_a_pass`` are looked at in one pass while a snapshot is taken."""
        self._blocks_a_pass = blocks_a_pass
        self._half = limit_bytes // 2
        self._sink = sink
        self.segments: deque[Segment] = deque()
        self._remains: list[Part] = []
        """Of the segment that was let go last."""
        self.named: list[tuple[int, int, PrefixKey]] = []
        """Filled by the pool, emptied by each pass."""
        self.likened: list[tuple[int, int, int]] = []
        """As ``named``."""
        self._in_flight: deque[tuple[NDArray[np.intp], list[tuple[int, bool]]]] = deque()
        """Decoding slots, then (slot, whether it samples) of each chunk, of batches not back yet."""
        self._slots: NDArray[np.intp] | None = None
        """That decoded in the newest pass of this segment."""
        self._decode_digest = b""
        self._begun_s: float | None = None
        self._origin: Origin | None = None
        self._take: Callable[[], Taking] | None = None
        self._taking: Taking | None = None
        """Of the next segment."""

    def open(self, origin: Origin, passes: int, take: Callable[[], Taking]) -> None:
        """The scheduler exists and has done nothing yet. ``take`` begins to take its state."""
        assert self._origin is None, "a journal is of one scheduler"
        self._origin, self._take = origin, take
        self._begin(Segment(origin, passes, None))

    # what happens

    def accepted(self, sequence: Sequence, now_s: float) -> None:
        """A sequence begins to wait."""
        tokens = sequence.tokens[: sequence.length] if self._sink is not None else None
        weight = 500 + 150 * len(sequence.request.media)
        self._put(("a", now_s, arrival_of(sequence)), weight, tokens)

    def ended(self, sequence: Sequence, now_s: float, *, failed: bool) -> None:
        """A sequence has its end."""
        reason = "" if sequence.end_reason is None else sequence.end_reason.name
        generated = sequence.length - sequence.prompt_tokens
        self._put(("e", now_s, sequence.number, reason, failed, generated), 150)

    def disowned(self, number: int, now_s: float) -> None:
        """The numbers of a sequence that had ended were wrong."""
        self._put(("x", now_s, number), 100)

    def retired(self, now_s: float) -> None:
        """Something may be released."""
        self._put(("r", now_s), 100)

    def completed(self, now_s: float, output: BatchOutput | None) -> None:
        """The oldest batch came back, before anything is done with it."""
        self._in_flight.popleft()
        tokens = output.tokens if output is not None and self._sink is not None else None
        self._put(("d", now_s), 100, tokens)

    def paced(self, now_s: float) -> None:
        """A batch had come back, by the clock that paces all ranks."""
        self._put(("c", now_s), 100)

    def turn(self, passes: int, now_s: float) -> None:
        """A pass begins, and perhaps a segment."""
        if self._remains:
            _take_away(self._remains, self._blocks_a_pass)
        full, weight = False, self.segments[-1].weight
        overdue = weight >= self._half + self._half // 4
        if self._sink is not None:
            self._sink.advance()
            full = self._sink.full
            overdue |= self._sink.overdue
        taking = self._taking
        if taking is None and (full or weight >= self._half):
            assert self._take is not None
            taking = self._taking = self._take()
        # One long pass is better than a ring or a file without a bound.
        if taking is not None and taking.advance(ALL_BLOCKS if overdue else self._blocks_a_pass):
            self._taking = None
            self._turn(passes, taking.finish())
        self._begun_s = now_s

    def _turn(self, passes: int, snapshot: Snapshot) -> None:
        self.flush()
        assert self._origin is not None
        in_flight = list(self._in_flight)

        def making() -> Making:
            state = yield from snapshot.making()
            flights = [[slots.tolist(), chunks] for slots, chunks in in_flight]
            return {**state, "in_flight": flights}

        self._begin(Segment(self._origin, passes, making, parts=snapshot.parts()))

    def planned(
        self, plan: PassPlan, ops: Many[MemoryOp], residents: Residents, now_s: float
    ) -> None:
        """A pass has its plan, and its effects on the scheduler are made."""
        self._begun_s = None
        if self._taking is not None:
            self._taking.planned(plan, ops)
        packed = array("q", pack(plan, ops, residents)).tobytes()
        weight = 200 + len(packed)
        decode: NDArray[np.int32] | None = None
        if plan.decode.slots is not self._slots:
            self._slots = plan.decode.slots
            decode = self._slots.astype(np.int32)
            self._decode_digest = blake2b(decode.data, digest_size=8).digest()
            weight += decode.nbytes
        # Begins of decoding rows; their slots by a digest, which changes as seldom as they do.
        digest = blake2b((plan.decode.begins + 1).data, digest_size=8)
        digest.update(self._decode_digest + packed)
        if not plan.empty:
            self._in_flight.append(
                (plan.decode.slots, [(_slot(c.sequence), c.generating) for c in plan.chunks])
            )
        self.flush()
        self._put(("p", now_s, digest.digest(), decode, packed), weight)

    def flush(self) -> None:
        """What is not in the ring yet: keys since the last pass, a pass that came to no plan."""
        if self.likened:
            self._put(("l", self.likened.copy()), 120 * len(self.likened))
            self.likened.clear()
        if self.named:
            self._put(("k", self.named.copy()), 120 * len(self.named))
            self.named.clear()
        elif self._begun_s is not None:
            began_s, self._begun_s = self._begun_s, None
            self._put(("s", began_s), 100)

    def _begin(self, segment: Segment) -> None:
        self._slots = None
        if len(self.segments) == 2:
            # To free it takes milliseconds, so that passes do it a little each.
            gone = self.segments.popleft()
            # A file may still write what it began with, which is then freed with that.
            self._remains = [gone.records, *([] if gone.making_for else gone.parts)]
        self.segments.append(segment)
        if self._sink is not None:
            self._sink.begin(segment)

    def _put(self, record: Record, weight: int, tokens: NDArray[np.int32] | None = None) -> None:
        if self._begun_s is not None:
            # Only a pass that broke has something else behind its beginning.
            began_s, self._begun_s = self._begun_s, None
            self._put(("s", began_s), 100)
        segment = self.segments[-1]
        segment.records.append(record)
        segment.weight += weight
        if self._sink is not None:
            self._sink.put(record, tokens)


def _take_away(parts: list[Part], most: int) -> None:
    """So many things of these, the last first."""
    while parts and most > 0:
        part = parts[-1]
        count = min(most, len(part))
        most -= count
        if isinstance(part, list):
            del part[len(part) - count :]
        else:
            for _ in range(count):
                part.popitem()
        if not part:
            parts.pop()


ARRIVAL_FIELDS = (
    *("number", "choice", "request.id", "request.tenant", "request.band", "request.cache_salt"),
    *("length", "prompt_tokens", "limit", "arrived_s", "request.deadline_s", "request.media"),
)
"""Of a sequence: what ``make_arrival`` takes, in ``Arrival``'s order. No token id is among them."""

_arrival_fields = attrgetter(*ARRIVAL_FIELDS)


def arrival_of(sequence: Sequence) -> Arrival:
    """What the scheduler needs to know of a sequence that arrives."""
    return make_arrival(*_arrival_fields(sequence))


def make_arrival(
    number: int,
    choice: int,
    id: str,
    tenant: str,
    band: int,
    salt: bytes,
    length: int,
    prompt_tokens: int,
    limit: int,
    arrived_s: float,
    deadline_s: float | None,
    media: Iterable[MediaSpan],
) -> Arrival:
    """Of the values of ``ARRIVAL_FIELDS``."""
    return Arrival(
        number=number,
        choice=choice,
        id=id,
        tenant=tenant,
        band=band,
        salt=salt_digest(salt),
        length=length,
        prompt_tokens=prompt_tokens,
        limit=limit,
        arrived_s=arrived_s,
        deadline_s=deadline_s,
        media=tuple((span.first, span.end, any(span.fingerprint)) for span in media),
    )


def salt_digest(salt: bytes) -> str:
    """A salt may be a secret: only whether two are equal matters."""
    return blake2b(salt, digest_size=16).hexdigest() if salt else ""


def pack(plan: PassPlan, ops: Iterable[MemoryOp], residents: Residents) -> list[int]:
    """A plan as numbers, all but its decoding slots: what ``unpack`` reads.

    pass, then five lists, each after its length: changes of block tables (slots, indices,
    offsets), chunks (``CHUNK_FIELDS`` each), copies (``COPY_FIELDS`` each), evictions (position and
    byte offset of the block), reasons of waiting sequences that were looked at (number, which,
    detail). Before the last one the reason of all others.
    """
    table = plan.table
    numbers = [plan.pass_id, len(table.slots), *table.slots, *table.indices, *table.offsets]
    numbers.append(len(plan.chunks))
    for chunk in plan.chunks:
        flags = chunk.starts + 2 * chunk.generating
        numbers += (chunk.sequence.number, _slot(chunk.sequence), chunk.begin, chunk.end,
                    chunk.store_from, flags)  # fmt: skip
    numbers.append(len(plan.restores) + len(plan.publishes))
    for after, copies in enumerate((plan.restores, plan.publishes)):
        for copy in copies:
            numbers += (copy.source, copy.target, copy.size, after)
    evicted = [op for op in ops if not op.granted]
    numbers.append(len(evicted))
    for block, allocation, _ in evicted:
        numbers += (block.offset, allocation.addresses[0])
    named = residents.reasons.named
    numbers += (REASONS.index(residents.reasons.others), len(named))
    for number, waiting in named.items():
        numbers += (number, REASONS.index(waiting.reason), waiting.detail)
    return numbers


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan in the journal, to be read and compared."""

    pass_id: int
    decode: tuple[int, ...]
    """Slots that decode one token."""
    table: tuple[tuple[int, int, int], ...]
    """(slot, block index, byte offset)."""
    chunks: tuple[tuple[int, ...], ...]
    """``CHUNK_FIELDS`` each."""
    copies: tuple[tuple[int, ...], ...]
    """``COPY_FIELDS`` each."""
    evicted: tuple[tuple[int, int], ...]
    """(position, byte offset)."""
    reasons: tuple[tuple[int, str, int], ...]
    """(number, reason, detail)."""
    others: str
    """Reason of waiting sequences that the pass did not look at, if there were any."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens of known context."""
        return sum(chunk[3] - chunk[2] for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Rows of the batch; none: nothing was handed over."""
        return len(self.decode) + len(self.chunks)

    def lines(self) -> list[str]:
        """The plan for a person, one fact a line."""
        lines = [f"decodes    slots {', '.join(map(str, self.decode)) or 'none'}"]
        for number, slot, begin, end, store_from, flags in self.chunks:
            how = ("starts, " if flags & 1 else "") + ("samples" if flags & 2 else "goes on")
            lines.append(
                f"computes   sequence {number} in slot {slot}: {begin}..{end}, "
                f"writes from {store_from}, {how}"
            )
        lines += [f"table      slot {s}, block {i} at byte {at}" for s, i, at in self.table]
        lines += [
            f"copies     {size} bytes from {source} to {target}, "
            + ("after" if after else "before")
            + " everything else"
            for source, target, size, after in self.copies
        ]
        lines += [f"evicts     the block of position {p} at byte {at}" for p, at in self.evicted]
        lines += [
            f"waits      sequence {number}: {reason}" + (f" {detail}" if detail else "")
            for number, reason, detail in self.reasons
        ]
        return [*lines, f"waits      every other one: {self.others}"]


def unpack(packed: bytes, decode: Iterable[int]) -> PlanView:
    """The inverse of ``pack``. Raises ``ValueError`` for anything else."""
    numbers = array("q")
    numbers.frombytes(packed)
    values = numbers.tolist()
    at = 1

    def rows(width: int) -> list[tuple[int, ...]]:
        nonlocal at
        count, at = values[at], at + 1
        end = at + count * width
        if count < 0 or end > len(values):
            raise ValueError("a plan's numbers end too early")
        flat, at = values[at:end], end
        return [tuple(flat[i : i + width]) for i in range(0, len(flat), width)]

    try:
        flat = [value for row in rows(3) for value in row]
        third = len(flat) // 3
        chunks, copies, evicted = rows(CHUNK_FIELDS), rows(COPY_FIELDS), rows(2)
        others, at = REASONS[values[at]].value, at + 1
        reasons = rows(3)
        view = PlanView(
            pass_id=values[0],
            decode=tuple(decode),
            table=tuple(zip(flat[:third], flat[third : 2 * third], flat[2 * third :], strict=True)),
            chunks=tuple(chunks),
            copies=tuple(copies),
            evicted=tuple((row[0], row[1]) for row in evicted),
            reasons=tuple((row[0], REASONS[row[1]].value, row[2]) for row in reasons),
            others=others,
        )
    except IndexError:
        raise ValueError("a plan's numbers end too early") from None
    if at != len(values):
        raise ValueError("a plan has more numbers than it says")
    return view


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot
