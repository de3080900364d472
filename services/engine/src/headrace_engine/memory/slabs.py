"""SlabAllocator: objects of one aligned size, carved out of page runs.

Owner    engine thread
Writes   its own masks, and pages through PageAllocator
Never    touches bytes
Rules    memory.coalesce, memory.exact-undo
Next     headrace_engine.memory.objects
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from headrace_engine.memory.pages import PageAllocator

NONE = -1
"""In place of a mask, where there is no slab."""

MIN_UTILIZATION = 0.95
"""A slab is doubled until its objects fill at least this share of it, or it is the largest."""


def slab_order(object_bytes: int, page_bytes: int, max_order: int) -> int:
    """Order of the smallest run of pages that objects of this size fill well enough."""
    order = 0
    while page_bytes << order < object_bytes:
        order += 1
    while order < max_order:
        slab = page_bytes << order
        if slab // object_bytes * object_bytes >= MIN_UTILIZATION * slab:
            break
        order += 1
    return order


@dataclass(frozen=True, slots=True)
class SlabStats:
    """One size class."""

    object_bytes: int
    capacity: int
    """Objects of one slab."""
    full: int
    partial: int
    used: int
    """Objects handed out."""


class SlabAllocator:
    """Objects of ``object_bytes``. An address is a byte offset in the region.

    Invariants
        a slab with no object handed out does not exist
        ``_partial`` is sorted and holds exactly the slabs with a free object
    """

    __slots__ = ("_free", "_full", "_order", "_page_bytes", "_pages", "_partial", "_slabs",
                 "capacity", "object_bytes", "used")  # fmt: skip

    def __init__(
        self, pages: PageAllocator, object_bytes: int, *, page_bytes: int, max_order: int
    ) -> None:
        self._pages = pages
        self._page_bytes = page_bytes
        self._order = slab_order(object_bytes, page_bytes, max_order)
        self.object_bytes = object_bytes
        self.capacity = (page_bytes << self._order) // object_bytes
        """Objects of one slab."""
        self._full = (1 << self.capacity) - 1
        self._free = [NONE] * ((pages.pages >> self._order) + 1)
        """By number: mask of the slab's free objects. A list, since a dictionary that grows with a
        pool stops everything when it grows."""
        self._slabs = 0
        self._partial: list[int] = []
        self.used = 0

    def alloc(self) -> int | None:
        """Address of an object from the lowest slab that has one, or None."""
        if self._partial:
            slab = self._partial[0]
            mask = self._free[slab >> self._order]
        else:
            run = self._pages.alloc(self._order)
            if run is None:
                return None
            slab, mask = run, self._full
            self._slabs += 1
            if self.capacity > 1:
                insort(self._partial, slab)
        lowest = mask & -mask
        mask ^= lowest
        self._free[slab >> self._order] = mask
        if not mask and self.capacity > 1:
            self._drop_partial(slab)
        self.used += 1
        return slab * self._page_bytes + (lowest.bit_length() - 1) * self.object_bytes

    def alloc_many(self, count: int) -> list[int]:
        """What as many calls of ``alloc`` return, without those that return None."""
        if self.capacity > 1 or self._order:
            found = (self.alloc() for _ in range(count))
            return [address for address in found if address is not None]
        # A slab of one object is a page: none of them is ever in part free.
        slabs, page_bytes, free = self._pages.alloc_pages(count), self._page_bytes, self._free
        for slab in slabs:
            free[slab] = 0
        self.used += len(slabs)
        self._slabs += len(slabs)
        return [slab * page_bytes for slab in slabs]

    def free(self, address: int) -> None:
        """Takes an object back; an empty slab returns to the pages at once."""
        slab, bit = self._locate(address)
        mask = self._free[slab >> self._order]
        assert not mask & bit, "object freed twice"
        self.used -= 1
        if mask | bit == self._full:
            if mask:
                self._drop_partial(slab)
            self._free[slab >> self._order] = NONE
            self._slabs -= 1
            self._pages.free(slab, self._order)
            return
        if not mask:
            insort(self._partial, slab)
        self._free[slab >> self._order] = mask | bit

    def claim(self, address: int) -> None:
        """Takes exactly this object, which must be free: the inverse of ``free``."""
        start = address // self._page_bytes >> self._order << self._order
        if self._free[start >> self._order] == NONE:
            self._pages.claim(start, self._order)
            self._free[start >> self._order] = self._full
            self._slabs += 1
            insort(self._partial, start)
        slab, bit = self._locate(address)
        mask = self._free[slab >> self._order]
        assert mask & bit, "claimed an object that is not free"
        self._free[slab >> self._order] = mask ^ bit
        self.used += 1
        if not mask ^ bit:
            self._drop_partial(slab)

    def stats(self) -> SlabStats:
        """Counts, for metrics and audits."""
        return SlabStats(
            object_bytes=self.object_bytes,
            capacity=self.capacity,
            full=self._slabs - len(self._partial),
            partial=len(self._partial),
            used=self.used,
        )

    def slab_pages(self) -> int:
        """Pages this class holds."""
        return self._slabs << self._order

    def available(self) -> int:
        """Upper bound of the objects that could be taken now; exact for slabs of one page."""
        held = self._slabs * self.capacity - self.used
        return held + self.fits(self._pages.free_pages)

    def fits(self, pages: int) -> int:
        """Objects that ``pages`` whole, unfragmented pages could hold."""
        return (pages >> self._order) * self.capacity

    def _locate(self, address: int) -> tuple[int, int]:
        slab = address // self._page_bytes >> self._order << self._order
        assert self._free[slab >> self._order] != NONE, "address of no slab"
        index, rest = divmod(address - slab * self._page_bytes, self.object_bytes)
        assert rest == 0, "address inside an object"
        return slab, 1 << index

    def _drop_partial(self, slab: int) -> None:
        at = bisect_left(self._partial, slab)
        assert self._partial[at] == slab
        del self._partial[at]
