"""CacheBlockPool: slots, their memory, and the order in which it is taken back.

Owner    engine thread
Writes   CacheBlock, SortedBlocks
Never    decides who loses memory; touches bytes
Rules    blocks.one-owner, cache.unheld-by-age
Next     headrace_engine.cache.trie
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace_engine.cache.block import CacheBlock, Stamp
from headrace_engine.memory.objects import Allocation, ObjectAllocator


class SortedBlocks:
    """Allocated slots that nobody holds, oldest stamp first, kept incrementally.

    A block is released tail first, so a child always stands before its parent.
    """

    __slots__ = ("_clock", "_slots")

    def __init__(self) -> None:
        self._slots: dict[CacheBlock, None] = {}
        self._clock = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[CacheBlock]:
        return iter(self._slots)

    def add(self, slot: CacheBlock) -> None:
        """Stamps the slot as used just now."""
        assert not slot.listed, "listed twice"
        self._clock += 1
        slot.stamp = Stamp(self._clock)
        slot.listed = True
        self._slots[slot] = None

    def add_all(self, slots: Sequence[CacheBlock]) -> None:
        """As many calls of ``add``, in this order."""
        stamp = self._clock
        for slot in slots:
            assert not slot.listed, "listed twice"
            stamp += 1
            slot.stamp = Stamp(stamp)
            slot.listed = True
        self._clock = stamp
        self._slots.update(dict.fromkeys(slots))

    def remove(self, slot: CacheBlock) -> None:
        """Takes it out: it is held again, or loses its memory."""
        assert slot.listed, "not listed"
        slot.listed = False
        del self._slots[slot]


class CacheBlockPool:
    """Slots of one region.

    Invariants
        allocated == objects alive in the allocator
    """

    __slots__ = ("allocated", "objects", "sorted")

    def __init__(self, objects: ObjectAllocator) -> None:
        self.objects = objects
        self.sorted = SortedBlocks()
        self.allocated = 0

    def attach(self, slot: CacheBlock, allocation: Allocation) -> None:
        """Memory that a trial took becomes the slot's."""
        assert slot.allocation is None, "slot has memory already"
        slot.allocation = allocation
        self.allocated += 1

    def detach(self, slot: CacheBlock) -> Allocation:
        """The slot's memory leaves it; giving it back to the allocator is the caller's part."""
        allocation = slot.allocation
        assert allocation is not None, "slot has no memory"
        if slot.listed:
            self.sorted.remove(slot)
        slot.allocation = None
        self.allocated -= 1
        return allocation
