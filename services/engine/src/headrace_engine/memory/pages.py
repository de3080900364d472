"""PageAllocator: a buddy system over the pages of one region. It hands out page numbers.

Owner    engine thread
Writes   its own bit masks
Never    touches bytes; knows addresses
Rules    memory.coalesce, memory.exact-undo
Next     headrace_engine.memory.slabs

The set of free pages decides the state completely: buddies are always merged, and the
lowest fitting run is taken. So undoing an operation gives back exactly the state before it.
"""

from __future__ import annotations


class PageAllocator:
    """Runs of ``2**order`` pages, aligned to their own length.

    Invariants
        bit i of ``_free[order]`` set  implies  run i of that order is free and its buddy is not
        every free page lies in exactly one free run
    """

    __slots__ = ("_free", "_free_pages", "pages")

    def __init__(self, pages: int) -> None:
        """``pages`` need not be a power of two."""
        if pages < 1:
            raise ValueError(f"a region needs at least one page, not {pages}")
        self.pages = pages
        self._free = [0] * pages.bit_length()
        self._free_pages = pages
        start = 0
        for order in reversed(range(len(self._free))):
            if pages - start >= 1 << order:
                self._free[order] |= 1 << (start >> order)
                start += 1 << order

    @property
    def free_pages(self) -> int:
        """Pages in no run that was handed out."""
        return self._free_pages

    def alloc(self, order: int) -> int | None:
        """First page of a free run of ``2**order`` pages, or None."""
        free = self._free
        larger = order
        while larger < len(free) and not free[larger]:
            larger += 1
        if larger >= len(free):
            return None
        mask = free[larger]
        lowest = mask & -mask
        free[larger] = mask ^ lowest
        run = lowest.bit_length() - 1
        while larger > order:
            larger -= 1
            run <<= 1
            free[larger] |= 1 << (run | 1)
        self._free_pages -= 1 << order
        return run << order

    def free(self, start: int, order: int) -> None:
        """Gives a run back and merges it with its free buddies."""
        free = self._free
        assert not any(free[o] >> (start >> o) & 1 for o in range(order, len(free))), (
            "page run freed twice"
        )
        run = start >> order
        self._free_pages += 1 << order
        while order + 1 < len(free):
            buddy = 1 << (run ^ 1)
            if not free[order] & buddy:
                break
            free[order] ^= buddy
            run >>= 1
            order += 1
        free[order] |= 1 << run

    def claim(self, start: int, order: int) -> None:
        """Takes exactly this run, which must be free: the inverse of ``free``."""
        free = self._free
        larger = order
        while larger < len(free) and not free[larger] >> (start >> larger) & 1:
            larger += 1
        assert larger < len(free), "claimed pages that are not free"
        free[larger] ^= 1 << (start >> larger)
        while larger > order:
            larger -= 1
            free[larger] |= 1 << ((start >> larger) ^ 1)
        self._free_pages -= 1 << order

    def runs(self) -> list[list[int]]:
        """First pages of the free runs, per order: for audits and statistics."""
        return [
            [i << order for i in range(mask.bit_length()) if mask >> i & 1]
            for order, mask in enumerate(self._free)
        ]

    def coalesced(self) -> bool:
        """Whether every page is free and every buddy merged, as after construction."""
        return self._free == PageAllocator(self.pages)._free
