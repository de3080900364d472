"""commit_results: the only place where a plan becomes state.

Owner    engine thread
Writes   Sequence, SequenceColumns, residents, validity of blocks
Never    decides; allocates
Rules    sched.one-commit, sched.metadata-ahead, seq.release-when-idle
Next     headrace_engine.loop.setup
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from headrace_engine.cache.block import LogicalBlock
from headrace_engine.scheduler.copies import addresses_of, resolve_copy
from headrace_engine.scheduler.grant import Grants
from headrace_engine.scheduler.plan import Decodes, Way
from headrace_engine.scheduler.publish import adopt, mark_produced, publish_complete
from headrace_engine.scheduler.residents import Residents
from headrace_engine.state.batch import ResolvedCopy
from headrace_engine.state.sequence import Sequence, Status


@dataclass(slots=True)
class Chunk:
    """Known context of one sequence, computed in this pass."""

    sequence: Sequence
    begin: int
    end: int
    store_from: int
    way: Way
    """What is copied before it."""
    starts: bool
    """Whether it enters a slot with this pass."""
    first: bool = False
    """Whether it runs for the first time."""
    stops: bool = False
    """Whether its end is where a recurrent state is to be kept."""
    state: tuple[int, ...] = ()
    """Byte offsets of the parts of its recurrent state, if it starts."""

    @property
    def generating(self) -> bool:
        """Whether a token is sampled after its last position."""
        return self.end == self.sequence.length


@dataclass(slots=True)
class TableChanges:
    """New entries of block tables: (slot, block index, byte offset), as three columns."""

    slots: array[int] = field(default_factory=partial(array, "i"))
    indices: array[int] = field(default_factory=partial(array, "i"))
    offsets: array[int] = field(default_factory=partial(array, "q"))

    def add(self, slot: int, addresses: array[int]) -> None:
        """A whole table: ``addresses`` stand from block 0 on."""
        count = len(addresses)
        self.slots += array("i", (slot,)) * count
        self.indices += _counting(count)
        self.offsets += addresses


@lru_cache(maxsize=64)
def _counting(count: int) -> array[int]:
    return array("i", range(count))


@dataclass(slots=True)
class PassPlan:
    """What one pass runs. Empty: nothing can run now."""

    pass_id: int
    decode: Decodes
    chunks: list[Chunk]
    """Those that sample a token first."""
    table: TableChanges
    restores: list[ResolvedCopy]
    """Done in this order before anything else of the batch."""
    publishes: list[ResolvedCopy]
    """Done after everything else of it."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to hand over."""
        return not len(self.decode.slots) and not self.chunks


def commit_results(
    residents: Residents,
    grants: Grants,
    decode: Decodes,
    extended: list[tuple[Sequence, LogicalBlock]],
    chunks: list[Chunk],
    *,
    pass_id: int,
    now_s: float,
) -> PassPlan:
    """Pauses who lost memory, advances who runs, and returns what to hand over.

    ``extended`` are decoding sequences that got a block; ``chunks`` may name sequences that
    were paused after their chunk was planned: those are dropped.
    """
    _pause_losers(residents, grants, now_s)
    running = [c for c in chunks if c.sequence.number not in grants.paused]
    # First: what this pass completes may turn out to be known already, and is then not offered.
    restores: list[ResolvedCopy] = []
    for chunk in running:
        if chunk.way.sources:
            _commit_copies(residents, chunk, restores)
    table = TableChanges()
    decode = _commit_decodes(residents, decode, extended, table)
    plan = PassPlan(pass_id, decode, running, table, restores, [])
    for chunk in running:
        _commit_chunk(residents, chunk, table, now_s)
    if len(running) > 1:
        running.sort(key=_generates, reverse=True)
    return plan


def _commit_copies(residents: Residents, chunk: Chunk, restores: list[ResolvedCopy]) -> None:
    """What the sequence goes on with is copied before the forward; it was written before that."""
    pool, number = residents.pool, chunk.sequence.number
    holder = residents.holders[number]
    sibling, state = chunk.way.sibling, chunk.way.state
    if state is not None:
        assert holder.frontier is not None
        restores += resolve_copy(pool, state, holder.frontier)
        adopt(holder, state, 0, residents.sequences)
        pool.touch(state)
    if sibling is not None:
        assert sibling.offset < chunk.begin <= sibling.offset + sibling.extent
        restores += resolve_copy(pool, sibling, holder.blocks[sibling.offset // pool.block_tokens])
        adopt(holder, sibling, sibling.offset, residents.sequences)
        pool.touch(sibling)
        residents.counters.copied_tokens += chunk.begin - sibling.offset


def _pause_losers(residents: Residents, grants: Grants, now_s: float) -> None:
    for number in grants.paused:
        sequence = residents.sequences[number]
        if sequence.status is Status.RUNNING:
            residents.pause(sequence, now_s)


def _commit_decodes(
    residents: Residents,
    decode: Decodes,
    extended: list[tuple[Sequence, LogicalBlock]],
    table: TableChanges,
) -> Decodes:
    columns = residents.columns
    if residents.any_paused:
        decode = decode.only(residents.running[decode.slots])
        extended = [(s, b) for s, b in extended if s.status is Status.RUNNING]
    if extended:
        _cross_into_blocks(residents, extended, table)
    slots = decode.slots
    columns.planned[slots] = decode.begins + 1
    columns.sampled[slots] = decode.begins + 2
    columns.inflight[slots] += 1
    return decode


def _cross_into_blocks(
    residents: Residents, extended: list[tuple[Sequence, LogicalBlock]], table: TableChanges
) -> None:
    """Each gets its new block, and the block before it is complete: its content is published."""
    columns, pool, holders = residents.columns, residents.pool, residents.holders
    slots = np.array([sequence.slot for sequence, _ in extended], np.intp)
    columns.flush_all(slots, [sequence for sequence, _ in extended])
    planned = columns.planned[slots]
    offsets: list[int] = []
    generated = residents.generated_stays
    for (sequence, block), written in zip(extended, planned.tolist(), strict=True):
        number = sequence.number
        block.valid = True
        block.publisher = number
        holder = holders[number]
        if holder.origins:
            block.origins = frozenset(holder.origins)
        assert block.slot is not None
        assert block.slot.allocation is not None
        offsets.append(block.slot.allocation.addresses[0])
        may = written if generated else residents.publishable(sequence, written)
        publish_complete(pool, holder, sequence, may)
    table.slots.extend(slots.tolist())
    table.indices.extend((planned // pool.block_tokens).tolist())
    table.offsets.extend(offsets)
    columns.capacity[slots] = planned + pool.block_tokens


def _commit_chunk(residents: Residents, chunk: Chunk, table: TableChanges, now_s: float) -> None:
    sequence = chunk.sequence
    holder = residents.holders[sequence.number]
    if chunk.starts:
        addresses = residents.activate(sequence, now_s)
        assert sequence.slot is not None
        table.add(sequence.slot, addresses)
        if sequence.first_pass_s is None:
            sequence.first_pass_s = now_s
            size = residents.pool.block_tokens
            cached = min(chunk.begin, sequence.prompt_tokens)
            sequence.cached_tokens = cached // size * size
            residents.counters.prompt_tokens += sequence.prompt_tokens
            residents.counters.cached_tokens += cached
            chunk.first = True
        if holder.frontier is not None:
            chunk.state = addresses_of(holder.frontier)
            if chunk.way.state is not None or not chunk.begin:
                holder.checkpointed = chunk.begin
    slot = sequence.slot
    assert slot is not None
    columns = residents.columns
    counters = residents.counters
    counters.prefill_tokens += chunk.end - chunk.begin
    begin, end = chunk.begin, chunk.end
    if sequence.reached > begin:
        counters.recomputed_tokens += min(end, sequence.reached) - begin
    if end > sequence.reached:
        sequence.reached = end
    residents.order.charge(sequence, end - begin)
    columns.planned[slot] = columns.charged[slot] = end
    columns.inflight[slot] += 1
    mark_produced(holder, begin, end, residents.pool.block_tokens)
    if end == sequence.length:
        columns.sampled[slot] += 1
        residents.start_decoding(sequence)


def _generates(chunk: Chunk) -> bool:
    return chunk.generating
