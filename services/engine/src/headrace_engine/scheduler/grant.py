"""Grants: memory for one pass, tried on the allocator itself and undone where it fails.

Owner    engine thread, during one pass
Writes   the trial, its own log
Never    touches blocks, slots or sequences: scheduler.replay and .commit do
Rules    sched.memory-by-order, sched.all-or-nothing, sched.one-producer, cache.unheld-by-age
Next     headrace_engine.scheduler.replay
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from headrace_engine.cache.block import CacheBlock, LogicalBlock, Rank, SequenceBlocks
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.memory.objects import Allocation
from headrace_engine.memory.scratch import Mark, Trial
from headrace_engine.scheduler.policy import may_take


class Claimant(NamedTuple):
    """A sequence that takes memory, or from which it is taken."""

    number: int
    rank: Rank
    holder: SequenceBlocks
    tenant: str
    runs: bool
    """Whether it holds a place in the batch."""


class Claimants:
    """Eligible sequences, to be looked up by number and in order, the last in rank first."""

    __slots__ = ("by_number", "last_first")

    def __init__(self, claimants: Iterable[Claimant]) -> None:
        self.last_first = sorted(claimants, key=_rank, reverse=True)
        self.by_number = {claimant.number: claimant for claimant in self.last_first}


class MemoryOp(NamedTuple):
    """One step of the pass, in order."""

    block: LogicalBlock
    allocation: Allocation
    """Taken for the block, or taken away from it."""
    granted: bool
    """False: evicted."""


_memory_op: Callable[[tuple[LogicalBlock, Allocation, bool]], MemoryOp] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]  # known by the annotation
    MemoryOp,
)
"""As ``MemoryOp._make``, without a Python call for each."""


class GrantMark(NamedTuple):
    """A point that a failed grant goes back to."""

    trial: Mark
    ops: int
    paused: int
    cursor: int


class Grants:
    """State of one pass. Lives no longer.

    Invariants
        ``lost`` names blocks whose content of before the pass is gone, even if they got new memory
        nothing in ``kept`` is evicted: it is copied from
        undo leaves allocator, granted, lost and paused as they were at the mark
    """

    __slots__ = ("_claimants", "_list_claimants", "_pool", "_producers", "_seen",
                 "_seen_at", "_trial", "_unheld", "granted", "kept", "lost", "ops", "paused")  # fmt: skip

    def __init__(self, pool: LogicalBlockPool, claimants: Callable[[], Claimants]) -> None:
        """``claimants`` lists every eligible sequence that may hold blocks; asked when needed."""
        self._pool = pool
        self._list_claimants = claimants
        self._claimants: Claimants | None = None
        self._trial = Trial(pool.slots.objects)
        self._unheld: Iterator[CacheBlock] = iter(pool.slots.sorted)
        self._seen: list[CacheBlock] = []
        self._seen_at = 0
        self._producers: dict[LogicalBlock, int] = {}
        self.ops: list[MemoryOp] = []
        self.granted: dict[LogicalBlock, Allocation] = {}
        self.lost: set[LogicalBlock] = set()
        self.kept: set[LogicalBlock] = set()
        self.paused: dict[int, None] = {}
        """Numbers of running sequences that lost a block."""

    # memory

    def take(self, taker: Claimant, block: LogicalBlock) -> bool:
        """Memory for one block: free, else unheld by age, else from the tail of the last in rank."""
        while not self.take_free(block):
            victim = self._oldest_unheld() or self._last_in_rank(taker)
            if victim is None:
                return False
            self._evict(victim)
        return True

    def take_free(self, block: LogicalBlock) -> bool:
        """Memory for one block if some is free; nobody loses any."""
        assert block.slot is not None
        allocation = self._trial.alloc(block.slot.type)
        if allocation is None:
            return False
        self.granted[block] = allocation
        self.ops.append(MemoryOp(block, allocation, granted=True))
        return True

    def take_free_many(self, blocks: Sequence[LogicalBlock]) -> int:
        """Memory for the first of these blocks, as far as some is free. Returns for how many."""
        allocations = self._trial.alloc_many(self._pool.block_type, len(blocks))
        self._note_granted(blocks, allocations)
        return len(allocations)

    def _note_granted(
        self, blocks: Sequence[LogicalBlock], allocations: Sequence[Allocation]
    ) -> None:
        granted, ops = self.granted, self.ops
        for block, allocation in zip(blocks, allocations, strict=False):
            granted[block] = allocation
            ops.append(_memory_op((block, allocation, True)))

    def make_free(self, count: int) -> bool:
        """Whether memory for so many blocks is free, once enough of what nobody holds was evicted."""
        objects, kind = self._pool.slots.objects, self._pool.block_type
        while (short := count - objects.capacity_left(kind)) > 0:
            # One block makes room for one, but a block with states for more.
            for _ in range(short if self._pool.state_type is None else 1):
                victim = self._oldest_unheld()
                if victim is None:
                    return False
                self._evict(victim)
        return True

    def take_all_free(
        self, blocks: Sequence[LogicalBlock], keep: Sequence[LogicalBlock] = ()
    ) -> bool:
        """Memory for every block if so much is free, as ``take_all``; else nothing is changed."""
        pool, granted, trial = self._pool, self.granted, self._trial
        if pool.state_type is not None:
            return False  # a frontier may be among them
        if granted:
            blocks = [b for b in blocks if b not in granted]
        if blocks:
            mark = trial.mark()
            allocations = trial.alloc_many(pool.block_type, len(blocks))
            if len(allocations) < len(blocks):
                trial.undo_to(mark)
                return False
            self._note_granted(blocks, allocations)
        if keep:
            self.kept.update(keep)
        return True

    def take_all(
        self, taker: Claimant, blocks: Sequence[LogicalBlock], keep: Sequence[LogicalBlock] = ()
    ) -> int:
        """Memory for every block, or nothing is changed. Returns how many it is short of.

        What is in ``keep`` loses none, now or later in this pass.
        """
        blocks = [b for b in blocks if b not in self.granted]
        short = len(blocks) - self._obtainable(taker, len(blocks))
        if short > 0:
            return short
        before = self.kept
        self.kept = before.union(keep)
        short = self._take_each(taker, blocks)
        if short:
            self.kept = before
        return short

    def take_spare(self, block: LogicalBlock) -> bool:
        """Memory for what is not necessary: free, or of blocks that nobody holds."""
        mark = self._mark()
        while not self.take_free(block):
            victim = self._oldest_unheld()
            if victim is None:
                self._undo_to(mark)
                return False
            self._evict(victim)
        return True

    def _take_each(self, taker: Claimant, blocks: Sequence[LogicalBlock]) -> int:
        mark = self._mark()
        for done, block in enumerate(blocks):
            if not self.take(taker, block):
                self._undo_to(mark)
                return len(blocks) - done
        return 0

    # producers

    def check_producers(self, holder: SequenceBlocks, begin: int, end: int) -> int | None:
        """Number of another sequence that computes a block of ``[begin, end)`` in this pass."""
        for block in self._range(holder, begin, end):
            producer = self._producers.get(block)
            if producer is not None and producer != holder.number:
                return producer
        return None

    def set_producers(self, holder: SequenceBlocks, begin: int, end: int) -> None:
        """The sequence computes these blocks; nobody else does in this pass.

        Those that are valid already are read, and not written: anybody may.
        """
        for block in self._range(holder, begin, end):
            if block.offered or (block.indexed and (not block.valid or block in self.lost)):
                self._producers[block] = holder.number

    def producer(self, block: LogicalBlock) -> int | None:
        """Number of the sequence that computes the block in this pass."""
        return self._producers.get(block)

    def _range(self, holder: SequenceBlocks, begin: int, end: int) -> list[LogicalBlock]:
        size = self._pool.block_tokens
        return holder.blocks[begin // size : -(-end // size)]

    # eviction

    def _obtainable(self, taker: Claimant, wanted: int) -> int:
        """An upper bound of the blocks it could get; exact enough to fail without trying."""
        slots = self._pool.slots
        count = slots.objects.capacity_left(self._pool.block_type)
        count += len(slots.sorted) - self._seen_at
        if count >= wanted or self._pool.state_type is not None:
            # With states there are objects of two sizes, and only trying tells.
            return max(count, wanted)
        for claimant in self._victims():
            if claimant.rank <= taker.rank:
                break
            if self._may_take(taker, claimant):
                count += sum(map(self._has_memory, claimant.holder.blocks))
        return count

    def _oldest_unheld(self) -> LogicalBlock | None:
        while True:
            if self._seen_at == len(self._seen):
                slot = next(self._unheld, None)
                if slot is None:
                    return None
                self._seen.append(slot)
            self._seen_at += 1
            block = self._seen[self._seen_at - 1].owner
            if block not in self.kept and block not in self.lost:
                return block

    def _last_in_rank(self, taker: Claimant) -> LogicalBlock | None:
        for claimant in self._victims():
            if claimant.rank <= taker.rank:
                return None
            if not self._may_take(taker, claimant):
                continue
            holder = claimant.holder
            frontier = holder.frontier
            if frontier is not None and self._has_memory(frontier):
                return frontier
            for block in reversed(holder.blocks):
                if (
                    self._has_memory(block)
                    and block not in self.kept
                    and self._all_give_way(taker, block)
                ):
                    return block
        return None

    def _victims(self) -> list[Claimant]:
        """Last in rank first."""
        if self._claimants is None:
            self._claimants = self._list_claimants()
        return self._claimants.last_first

    def _all_give_way(self, taker: Claimant, block: LogicalBlock) -> bool:
        assert self._claimants is not None
        for holder in block.holders:
            claimant = self._claimants.by_number.get(holder.number)
            if claimant is None or not self._may_take(taker, claimant):
                return False
        return True

    def _may_take(self, taker: Claimant, victim: Claimant) -> bool:
        return may_take(
            taker.rank,
            victim.rank,
            taker_runs=taker.runs,
            victim_runs=victim.runs and victim.number not in self.paused,
            same_tenant=taker.tenant == victim.tenant,
        )

    def _has_memory(self, block: LogicalBlock) -> bool:
        return block in self.granted or (block.allocated and block not in self.lost)

    def _evict(self, block: LogicalBlock) -> None:
        for state in block.states:
            if self._has_memory(state):
                self._evict(state)
        allocation = self.granted.pop(block, None)
        if allocation is None:
            assert block.slot is not None
            allocation = block.slot.allocation
            assert allocation is not None
            self.lost.add(block)
        self._trial.free(allocation)
        self.ops.append(_memory_op((block, allocation, False)))
        for holder in block.holders:
            self.paused.setdefault(holder.number)

    # undo

    def _mark(self) -> GrantMark:
        return GrantMark(self._trial.mark(), len(self.ops), len(self.paused), self._seen_at)

    def _undo_to(self, mark: GrantMark) -> None:
        self._trial.undo_to(mark.trial)
        while len(self.ops) > mark.ops:
            block, allocation, granted = self.ops.pop()
            if granted:
                del self.granted[block]
            elif block.slot is not None and block.slot.allocation is allocation:
                self.lost.discard(block)
            else:
                self.granted[block] = allocation
        while len(self.paused) > mark.paused:
            self.paused.popitem()
        self._seen_at = mark.cursor


def _rank(claimant: Claimant) -> Rank:
    return claimant.rank
