"""Replay: a journal's events into a fresh scheduler, and every plan compared by its hash.

Owner    any one thread; no engine is needed
Writes   a scheduler of its own
Never    has a token id: equal blocks get equal stand-ins, that is all a scheduler can see
Rules    journal.replays
Next     headrace_engine.scheduler.simulate.simulator
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_contracts.prefix_key import PrefixKey
from headrace_kit.affinity import Affinity
from numpy.typing import NDArray

from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.drive import Flight, flight_of, flush, give_tokens, land
from headrace_engine.scheduler.journal import Arrival, Journal, PlanView, Record, Segment, unpack
from headrace_engine.scheduler.journal_state import make_sequence, restore
from headrace_engine.scheduler.residents import Residents
from headrace_engine.scheduler.scheduler import Scheduler


class Unrecorded(KeyError):
    """A search that the journal does not have."""


class Contents:
    """Stand-ins for tokens, such that two blocks are equal where their keys were.

    Blocks without a key are like no other.
    """

    def __init__(self, segment: Segment) -> None:
        self._size = segment.origin.settings.block_tokens
        self._ids: dict[PrefixKey, int] = {}
        self._next = 1
        self._keys: dict[int, dict[int, PrefixKey]] = {}
        self._spans: dict[int, int] = {}
        self._likened: dict[int, deque[tuple[int, int]]] = {}
        self._made: dict[int, NDArray[np.int32]] = {}
        self._read(segment)

    def of_key(self, key: PrefixKey) -> NDArray[np.int32]:
        """The block with this key."""
        return np.full(self._size, self._id(key), np.int32)

    def of(self, number: int) -> NDArray[np.int32]:
        """The tokens of a sequence, up to its limit."""
        made = self._made.get(number)
        if made is None:
            keys = self._keys.get(number, {})
            blocks = -(-self._spans[number] // self._size)
            ids = [self._id(keys[i]) if i in keys else self._fresh() for i in range(blocks)]
            made = self._made[number] = np.repeat(np.array(ids, np.int32), self._size)
        return made

    def recall(self, number: int) -> tuple[int, int]:
        """What the next search of this sequence for a sibling found. Stand-ins cannot tell."""
        found = self._likened.get(number)
        if not found:
            raise Unrecorded(f"no search of sequence {number}")
        return found.popleft()

    def _id(self, key: PrefixKey) -> int:
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self._fresh()
        return known

    def _fresh(self) -> int:
        self._next += 1
        return self._next

    def _read(self, segment: Segment) -> None:
        """Looks ahead: the key of a block is known only once the block is full."""
        state = segment.state
        if state is not None:
            for fields in state["sequences"]:
                arrival = fields["arrival"]
                self._spans[arrival["number"]] = max(arrival["limit"], arrival["length"])
            blocks = state["blocks"]
            for number, _, _, _, held, *_ in state["holders"]:
                for index, place in enumerate(held):
                    if blocks[place][1] is not None:
                        key = PrefixKey(bytes.fromhex(blocks[place][1]))
                        self._keys.setdefault(number, {})[index] = key
        for record in segment.records:
            if record[0] == "k":
                for number, index, key in record[1]:
                    self._keys.setdefault(number, {})[index] = key
            elif record[0] == "l":
                for number, maker, common in record[1]:
                    self._likened.setdefault(number, deque()).append((maker, common))
            elif record[0] == "a":
                arrival = record[2]
                self._spans[arrival.number] = max(arrival.limit, arrival.length)


@dataclass(frozen=True, slots=True)
class Step:
    """One batch, as cost models are fitted to it."""

    decode_rows: int
    prefill_tokens: int
    context_tokens: int
    """Positions that the rows attend to, over all rows."""
    seconds: float


def step_of(plan: PassPlan, residents: Residents) -> Step:
    """The work of a plan that was just made. Its time is not known yet."""
    context = int(residents.columns.planned[plan.decode.slots].sum())
    return Step(
        decode_rows=len(plan.decode.slots),
        prefill_tokens=sum(chunk.end - chunk.begin for chunk in plan.chunks),
        context_tokens=context + sum(chunk.end for chunk in plan.chunks),
        seconds=0.0,
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """The first plan that is not the recorded one."""

    pass_id: int
    recorded: PlanView
    replayed: PlanView


@dataclass(slots=True)
class Replayed:
    """What came of one segment."""

    first_pass: int
    passes: int = 0
    """Plans that were compared and agree."""
    difference: Difference | None = None
    broke: str = ""
    """What the scheduler raised in the pass in which the recorded engine broke."""
    recorded_break: bool = False
    """Whether the recorded engine broke in the middle of a pass."""
    steps: list[Step] = field(default_factory=list[Step])


class Replayer:
    """Feeds one segment to a scheduler of its own."""

    def __init__(self, segment: Segment) -> None:
        """Raises ``JournalRejected`` where the segment's state is none."""
        self._segment = segment
        self.contents = Contents(segment)
        origin = segment.origin
        affinity = Affinity("replay")
        affinity.bind()
        self._journal = Journal(1 << 62)
        self.scheduler = Scheduler(
            origin.settings,
            block_bytes=origin.block_bytes,
            weights_version=origin.weights_version,
            kv_dtype=origin.kv_dtype,
            state_parts=origin.state_parts,
            affinity=affinity,
            journal=self._journal,
        )
        self.scheduler.pool.recall = self.contents.recall
        self._flights: deque[tuple[Flight, Step, float]] = deque()
        self._landed: Flight | None = None
        self._device_free_s = float("-inf")
        self._decode: tuple[int, ...] = ()
        """Decoding slots of the newest recorded plan."""
        if segment.state is not None:
            self._restore()

    def run(self) -> Replayed:
        """Replays until the end or the first difference.

        Raises ``JournalRejected`` when an event cannot be: the file is not what an engine wrote.
        """
        result = Replayed(self._segment.passes + 1)
        for at, record in enumerate(self._segment.records):
            try:
                self._feed(record, result)
            except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
                raise JournalRejected(
                    f"record {at} ({record[0]!r}) cannot follow what is before it: {error!r}"
                ) from error
            if result.difference is not None or result.recorded_break:
                break
        return result

    def _restore(self) -> None:
        state = self._segment.state
        assert state is not None
        try:
            restore(self.scheduler, state, self.contents.of_key, self.contents.of)
            for decode, chunks in state["in_flight"]:
                # Those that sample first, as in every batch.
                slots = np.array([*decode, *(slot for slot, _ in chunks)], np.intp)
                sampling = len(decode) + sum(samples for _, samples in chunks)
                self._flights.append((Flight(slots, sampling), Step(0, 0, 0, 0.0), 0.0))
        except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
            raise JournalRejected(f"the segment's state is not whole: {error!r}") from error

    def _feed(self, record: Record, result: Replayed) -> None:
        kind = record[0]
        if self._landed is not None and not (kind == "x" or (kind == "e" and record[4])):
            give_tokens(self._landed, self.scheduler.residents, self.contents.of)
            self._landed = None
        if kind == "a":
            self._accept(record[1], record[2])
        elif kind == "e":
            self._end(*record[1:])
        elif kind == "x":
            self.scheduler.disown(self.scheduler.residents.sequences[record[2]], record[1])
        elif kind == "r":
            self.scheduler.retire(record[1])
        elif kind == "d":
            self._complete(record[1], result)
        elif kind == "c":
            self.scheduler.completed(record[1])
        elif kind == "p":
            self._schedule(record, result)
        elif kind == "s":
            self._break(record[1], result)

    def _accept(self, now_s: float, arrival: Arrival) -> None:
        sequence = make_sequence(arrival, self.contents.of(arrival.number))
        self.scheduler.accept(sequence, now_s)

    def _end(self, now_s: float, number: int, reason: str, failed: bool, generated: int) -> None:
        residents = self.scheduler.residents
        sequence = residents.sequences[number]
        flush(sequence, residents)
        have = sequence.length - sequence.prompt_tokens
        assert have == generated, f"sequence {number} has {have} tokens, not {generated}"
        sequence.end_reason = FinishReason[reason] if reason else None
        if failed:
            self.scheduler.fail(sequence, now_s)
        else:
            self.scheduler.end(sequence, now_s)

    def _complete(self, now_s: float, result: Replayed) -> None:
        flight, step, handed_s = self._flights.popleft()
        began_s = max(handed_s, self._device_free_s)
        self._device_free_s = now_s
        if step.decode_rows or step.prefill_tokens:
            seconds = now_s - began_s
            result.steps.append(
                Step(step.decode_rows, step.prefill_tokens, step.context_tokens, seconds)
            )
        land(flight, self.scheduler.residents)
        self._landed = flight

    def _schedule(self, record: Record, result: Replayed) -> None:
        _, now_s, digest, decode, packed = record
        plan = self.scheduler.schedule(now_s)
        if not plan.empty:
            self._flights.append((flight_of(plan), step_of(plan, self.scheduler.residents), now_s))
        if decode is not None:
            self._decode = tuple(decode.tolist())
        mine = self._journal.segments[-1].records[-1]
        self._journal.segments[-1].records.clear()
        if mine[2] == digest:
            result.passes += 1
            return
        result.difference = Difference(
            plan.pass_id, unpack(packed, self._decode), unpack(mine[4], plan.decode.slots.tolist())
        )

    def _break(self, now_s: float, result: Replayed) -> None:
        result.recorded_break = True
        try:
            self.scheduler.schedule(now_s)
        except Unrecorded:
            pass  # it got further here than there
        except (AssertionError, KeyError, IndexError, TypeError, ValueError) as error:
            result.broke = repr(error)
