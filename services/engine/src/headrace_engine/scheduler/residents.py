"""Residents: every sequence the engine holds, in which list it stands, and its moves between them.

Owner    engine thread
Writes   Sequence.status, slots, the waiting line, SequenceBlocks
Never    plans; takes memory
Rules    seq.release-when-idle, seq.waiting-holds-no-slot
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.cache.trie import RootIdentity
from headrace_engine.scheduler.copies import addresses_in_order
from headrace_engine.scheduler.grant import Claimant, Claimants
from headrace_engine.scheduler.order import TotalOrder, WaitingLine
from headrace_engine.scheduler.publish import (
    block_at,
    keep_tail,
    leave_frontier,
    publish_complete,
)
from headrace_engine.scheduler.reasons import Reason, ReasonBook
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.sequence import Sequence, SequenceColumns, Status


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    copied_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    deferrals: int = 0


class Residents:
    """Sequences by state.

    Invariants
        WAITING iff in ``waiting``; RUNNING iff ``running[slot]``
        RUNNING iff in exactly one of ``prefilling`` and the decoding slots
        every slot is free or some sequence's
    """

    __slots__ = ("_claimants", "_decoding", "_decoding_array", "_free_slots", "_model", "_settings", "any_paused", "bands",
                 "by_slot", "columns", "counters", "generated_stays", "holders", "order", "paused", "pool",
                 "prefilling", "reasons", "retiring", "running", "sequences", "waiting")  # fmt: skip

    def __init__(
        self, settings: SchedulerSettings, pool: LogicalBlockPool, model: tuple[str, str]
    ) -> None:
        """``model`` is (weights version, KV dtype): they enter the cache's root keys."""
        self._settings = settings
        self._model = model
        self.pool = pool
        self.columns = SequenceColumns(settings.max_batch, settings.block_tokens)
        self.order = TotalOrder(settings.tenant_weights)
        self.waiting = WaitingLine(self.order, settings.ageing_s)
        self.reasons = ReasonBook()
        self.counters = Counters()
        self.sequences: dict[int, Sequence] = {}
        self.holders: dict[int, SequenceBlocks] = {}
        """By number, from the first time the pass looked at the sequence."""
        self.by_slot: list[Sequence | None] = [None] * settings.max_batch
        self.prefilling: dict[int, Sequence] = {}
        """RUNNING with known context left, by number."""
        self.paused: list[Sequence] = []
        self.retiring: list[Sequence] = []
        self.running = np.zeros(settings.max_batch, np.bool_)
        """By slot."""
        self._claimants: Claimants | None = None
        self.bands: dict[int, int] = {}
        """Running sequences by band, where there are any."""
        self.any_paused = False
        """Whether the newest pass paused anybody."""
        self.generated_stays = settings.cache_generation != "none"
        """Whether blocks of generated tokens are cached."""
        self._free_slots = list(reversed(range(settings.max_batch)))
        self._decoding: dict[int, None] = {}
        self._decoding_array: NDArray[np.intp] | None = None

    # entering and leaving

    def enter(self, sequence: Sequence, now_s: float) -> None:
        """An accepted sequence begins to wait."""
        self.sequences[sequence.number] = sequence
        self.order.enter(sequence)
        self.waiting.add(sequence)
        # From its arrival at the door, so that reasons sum to what is told as queue time.
        self.reasons.enter(sequence.number, now_s, sequence.arrived_s)

    def hold(self, sequence: Sequence) -> SequenceBlocks:
        """Its blocks; an empty run under its salted root if it has none yet."""
        holder = self.holders.get(sequence.number)
        if holder is None:
            version, kv_dtype = self._model
            root = self.pool.trie.root(
                RootIdentity(
                    weights_version=version,
                    kv_dtype=kv_dtype,
                    tenant=sequence.request.tenant,
                    adapter="",
                    salt=sequence.request.cache_salt,
                )
            )
            holder = self.holders[sequence.number] = self.pool.enter(sequence.number, root)
            self.forget_claimants()
        return holder

    def end(self, sequence: Sequence, now_s: float) -> None:
        """It will never be scheduled again. Released by ``release_idle``."""
        assert sequence.status is not Status.ENDED, "ended twice"
        self.forget_claimants()
        if sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.PAUSED:
            self.paused.remove(sequence)
        else:
            self._leave_batch(sequence)
        if sequence.status is not Status.RUNNING:
            self.reasons.leave(sequence.number, now_s)
        sequence.status = Status.ENDED
        if sequence.slot is not None:
            self.columns.live[sequence.slot] = False
        holder = self.holders.get(sequence.number)
        if holder is not None:
            holder.eligible = False
        self.retiring.append(sequence)

    def release_idle(self, now_s: float) -> list[Sequence]:
        """Frees what ended sequences hold, and parks paused ones, once nothing is in flight."""
        if self.paused:
            self._park_idle()
        if not self.retiring:
            return []
        gone: list[Sequence] = []
        still: list[Sequence] = []
        for sequence in self.retiring:
            (gone if self._idle(sequence) else still).append(sequence)
        self.retiring = still
        for sequence in gone:
            self._release(sequence, now_s)
        return gone

    def publishable(self, sequence: Sequence, written: int) -> int:
        """Positions, of the first ``written``, that may stay in the cache."""
        return written if self.generated_stays else min(written, sequence.prompt_tokens)

    # moves

    @property
    def coming_slots(self) -> int:
        """Slots that will be free once what is in flight has come back."""
        return len(self.paused) + sum(s.slot is not None for s in self.retiring)

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free_slots)

    def activate(self, sequence: Sequence, now_s: float) -> array[int]:
        """It takes a slot. Returns the byte offsets of its blocks, which go into the table."""
        self.waiting.remove(sequence)
        self.forget_claimants()
        self.reasons.leave(sequence.number, now_s)
        slot = self._free_slots.pop()
        sequence.slot = slot
        sequence.status = Status.RUNNING
        self.by_slot[slot] = sequence
        self.running[slot] = True
        band = self.order.band(sequence)
        self.bands[band] = self.bands.get(band, 0) + 1
        self.prefilling[sequence.number] = sequence
        columns = self.columns
        columns.enter(slot, sequence)
        addresses = addresses_in_order(self.holders[sequence.number])
        columns.capacity[slot] = len(addresses) * self._settings.block_tokens
        return addresses

    def in_flight(self) -> set[int]:
        """Numbers of the sequences that a batch which has not come back contains."""
        return {
            sequence.number
            for sequence, batches in zip(self.by_slot, self.columns.inflight, strict=True)
            if sequence is not None and batches
        }

    def start_decoding(self, sequence: Sequence) -> None:
        """Its whole known context is planned: from now on one token per pass."""
        assert sequence.slot is not None
        del self.prefilling[sequence.number]
        self._decoding[sequence.slot] = None
        self._decoding_array = None

    def decoding(self) -> NDArray[np.intp]:
        """Slots that decode, in the order in which they began to."""
        if self._decoding_array is None:
            self._decoding_array = np.fromiter(self._decoding, np.intp, len(self._decoding))
        return self._decoding_array

    def at(self, slots: NDArray[np.intp]) -> list[Sequence]:
        """The sequences in these slots."""
        numbers: list[int] = slots.tolist()
        found = [s for s in map(self.by_slot.__getitem__, numbers) if s is not None]
        assert len(found) == len(numbers), "nobody in the slot"
        return found

    def pause(self, sequence: Sequence, now_s: float, trusted: int | None = None) -> None:
        """It loses its place; it waits again once its last batch is back.

        ``trusted`` positions are sound if something it read was poisoned; results in flight
        are then dropped.
        """
        self.counters.preemptions += 1
        self.forget_claimants()
        sequence.preemptions += 1
        self._leave_batch(sequence)
        sequence.status = Status.PAUSED
        self.paused.append(sequence)
        self.any_paused = True
        self.reasons.enter(sequence.number, now_s)
        self.reasons.name(sequence.number, Reason.IN_FLIGHT, now_s)
        if trusted is not None:
            self.distrust(sequence, trusted)

    def distrust(self, sequence: Sequence, trusted: int) -> None:
        """Positions from ``trusted`` on were computed from poisoned blocks."""
        if sequence.status is Status.WAITING:
            sequence.filled = min(sequence.filled, trusted)
            holder = self.holders[sequence.number]
            holder.changed = True
            if holder.frontier is not None:
                holder.frontier.valid = False
            return
        assert sequence.slot is not None
        assert sequence.status is Status.PAUSED
        if sequence.trusted is None or trusted < sequence.trusted:
            sequence.trusted = trusted
        self.columns.live[sequence.slot] = False

    def claimants(self) -> Claimants:
        """Every eligible sequence that may hold blocks. Kept until somebody moves."""
        if self._claimants is None:
            self._claimants = Claimants(
                self.claimant(self.sequences[number])
                for number, holder in self.holders.items()
                if holder.eligible
            )
        return self._claimants

    def forget_claimants(self) -> None:
        """Somebody came, went, began or ceased to run, or the order changed."""
        self._claimants = None

    def claimant(self, sequence: Sequence) -> Claimant:
        """The sequence as one that takes memory or gives it."""
        return Claimant(
            number=sequence.number,
            rank=self.order.rank(sequence),
            holder=self.holders[sequence.number],
            tenant=sequence.request.tenant,
            runs=sequence.status is Status.RUNNING,
        )

    def charge_decodes(self) -> None:
        """Tenants pay for what was decoded since the last quantum."""
        slots, columns = self.decoding(), self.columns
        planned = columns.planned[slots]
        tokens: list[int] = (planned - columns.charged[slots]).tolist()
        columns.charged[slots] = planned
        self.order.charge_many(zip(self.at(slots), tokens, strict=True))

    def _leave_batch(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        if self.prefilling.pop(sequence.number, None) is None:
            del self._decoding[slot]
            self._decoding_array = None
        self.running[slot] = False
        band = self.order.band(sequence)
        self.bands[band] -= 1
        if not self.bands[band]:
            del self.bands[band]

    def _park_idle(self) -> None:
        still: list[Sequence] = []
        for sequence in self.paused:
            if self._idle(sequence):
                self._park(sequence)
            else:
                still.append(sequence)
        self.paused = still

    def _park(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        self.columns.flush(slot, sequence)
        planned = int(self.columns.planned[slot])
        sequence.reached = max(sequence.reached, planned)
        trusted = planned if sequence.trusted is None else sequence.trusted
        sequence.filled = min(planned, trusted)
        holder = self.holders[sequence.number]
        holder.changed = True
        if holder.frontier is not None:
            # What it stood at is known again, now that nothing is in flight.
            holder.frontier.offset = planned
            holder.frontier.valid = sequence.trusted is None and holder.frontier.allocated
        sequence.trusted = None
        self._free_slot(sequence)
        sequence.status = Status.WAITING
        self.waiting.add(sequence)

    def _release(self, sequence: Sequence, now_s: float) -> None:
        slot = sequence.slot
        written = sequence.filled
        if slot is not None:
            self.columns.flush(slot, sequence)
            written = int(self.columns.planned[slot])
            if sequence.trusted is not None:
                written = min(written, sequence.trusted)
            self._free_slot(sequence)
        holder = self.holders.pop(sequence.number, None)
        if holder is not None:
            if holder.blocks and self._settings.prefix_cache:
                at = written if slot is not None and sequence.trusted is None else 0
                frontier = holder.frontier
                if slot is None and frontier is not None and frontier.valid:
                    at = frontier.offset
                self._publish_last(holder, sequence, written, at)
            self.pool.leave(holder)
        self.reasons.forget(sequence.number)
        self.order.leave(sequence)
        del self.sequences[sequence.number]

    def _publish_last(
        self, holder: SequenceBlocks, sequence: Sequence, written: int, state_at: int
    ) -> None:
        """``state_at`` is where its recurrent state stands; 0: nowhere that is known."""
        may = self.publishable(sequence, written)
        publish_complete(self.pool, holder, sequence, may)
        generated = self._settings.cache_generation == "all"
        keep_tail(self.pool, holder, sequence, may, generated=generated)
        may_stay = generated or state_at <= sequence.prompt_tokens
        if holder.frontier is not None and state_at <= sequence.length and may_stay:
            block = block_at(self._settings, holder, sequence, state_at)
            if block is not None and holder.chain is not None:
                leave_frontier(self.pool, holder, block, state_at)

    def _free_slot(self, sequence: Sequence) -> None:
        slot = sequence.slot
        assert slot is not None
        self._charge(sequence, slot)
        self.columns.live[slot] = False
        self.by_slot[slot] = None
        self._free_slots.append(slot)
        sequence.slot = None

    def _charge(self, sequence: Sequence, slot: int) -> None:
        tokens = int(self.columns.planned[slot] - self.columns.charged[slot])
        self.columns.charged[slot] += tokens
        self.order.charge(sequence, tokens)

    def _idle(self, sequence: Sequence) -> bool:
        return sequence.slot is None or self.columns.inflight[sequence.slot] == 0

    def audit(self) -> None:
        """Asserts every invariant. O(everything)."""
        waiting = list(self.waiting)
        assert all(s.status is Status.WAITING and s.slot is None for s in waiting)
        running = [s for s in self.by_slot if s is not None and s.status is Status.RUNNING]
        bands = [self.order.band(s) for s in running]
        assert self.bands == {band: bands.count(band) for band in set(bands)}
        assert all(s.status is Status.PAUSED for s in self.paused)
        assert all(s.status is Status.ENDED for s in self.retiring)
        total = len(waiting) + len(running) + len(self.paused) + len(self.retiring)
        assert total == len(self.sequences), "a sequence is in no list or in two"
        used = [i for i, s in enumerate(self.by_slot) if s is not None]
        assert len(used) + len(self._free_slots) == len(self.by_slot)
        assert not set(used) & set(self._free_slots)
        columns = self.columns
        for slot in used:
            sequence = self.by_slot[slot]
            assert sequence is not None
            assert sequence.slot == slot
            assert (sequence.status is Status.RUNNING) == bool(self.running[slot])
            assert 0 <= columns.inflight[slot] <= self._settings.phases
            if sequence.status is Status.RUNNING:
                decodes = slot in self._decoding
                assert decodes != (sequence.number in self.prefilling)
                assert not decodes or columns.planned[slot] == columns.sampled[slot] - 1
                self._audit_running(sequence, slot)
        self.pool.audit(list(self.holders.values()))
        self.pool.slots.objects.audit()

    def _audit_running(self, sequence: Sequence, slot: int) -> None:
        columns = self.columns
        assert sequence.length <= columns.known[slot] <= columns.sampled[slot]
        assert columns.planned[slot] <= columns.sampled[slot] <= columns.limit[slot]
        blocks = self.holders[sequence.number].blocks
        size = self._settings.block_tokens
        assert columns.planned[slot] <= columns.capacity[slot] <= len(blocks) * size
        for i in range(int(columns.capacity[slot]) // size):
            held = blocks[i].slot
            assert held is not None
            assert held.allocation is not None, "a running sequence lost memory"
