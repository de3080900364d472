"""PageAllocator: a buddy system over the pages of one region. It hands out page numbers.

Owner    engine thread
Writes   its own sets of runs
Never    touches bytes; knows addresses
Rules    memory.coalesce, memory.exact-undo
Next     headrace_engine.memory.slabs

The set of free pages decides the state completely: buddies are always merged, and the
lowest fitting run is taken. So undoing an operation gives back exactly the state before it.
"""

from __future__ import annotations

_WORD = 10
"""A word of a mask has 1 << 10 bits."""


class RunSet:
    """A set of small integers, as two levels of masks: finding the least costs the same for all sizes.

    Invariants
        bit w of ``summary`` set  iff  ``words[w]`` is not 0
    """

    __slots__ = ("summary", "words")

    def __init__(self, size: int) -> None:
        """For members below ``size``."""
        self.words = [0] * ((size >> _WORD) + 1)
        self.summary = 0
        """0 when it is empty."""

    def __contains__(self, run: int) -> bool:
        return bool(self.words[run >> _WORD] >> (run & (1 << _WORD) - 1) & 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSet) and self.words == other.words

    __hash__ = None  # type: ignore[assignment]

    def add(self, run: int) -> None:
        """Puts in what is not in it."""
        at = run >> _WORD
        self.words[at] |= 1 << (run & (1 << _WORD) - 1)
        self.summary |= 1 << at

    def remove(self, run: int) -> None:
        """Takes out what is in it."""
        at = run >> _WORD
        word = self.words[at] = self.words[at] ^ 1 << (run & (1 << _WORD) - 1)
        if not word:
            self.summary ^= 1 << at

    def pop_least(self) -> int:
        """Takes out the least; there must be one."""
        summary = self.summary
        at = (summary & -summary).bit_length() - 1
        word = self.words[at]
        least = word & -word
        self.words[at] = word = word ^ least
        if not word:
            self.summary = summary ^ 1 << at
        return at << _WORD | least.bit_length() - 1

    def members(self) -> list[int]:
        """In order. O(size)."""
        return [
            at << _WORD | bit
            for at, word in enumerate(self.words)
            for bit in range(word.bit_length())
            if word >> bit & 1
        ]


class PageAllocator:
    """Runs of ``2**order`` pages, aligned to their own length.

    Invariants
        i in ``_free[order]``  implies  run i of that order is free and its buddy is not
        every free page lies in exactly one free run
    """

    __slots__ = ("_free", "_free_pages", "pages")

    def __init__(self, pages: int) -> None:
        """``pages`` need not be a power of two."""
        if pages < 1:
            raise ValueError(f"a region needs at least one page, not {pages}")
        self.pages = pages
        self._free = [RunSet((pages >> order) + 1) for order in range(pages.bit_length())]
        self._free_pages = pages
        start = 0
        for order in reversed(range(len(self._free))):
            if pages - start >= 1 << order:
                self._free[order].add(start >> order)
                start += 1 << order

    @property
    def free_pages(self) -> int:
        """Pages in no run that was handed out."""
        return self._free_pages

    def alloc(self, order: int) -> int | None:
        """First page of a free run of ``2**order`` pages, or None."""
        free = self._free
        larger = order
        while larger < len(free) and not free[larger].summary:
            larger += 1
        if larger >= len(free):
            return None
        run = free[larger].pop_least()
        while larger > order:
            larger -= 1
            run <<= 1
            free[larger].add(run | 1)
        self._free_pages -= 1 << order
        return run << order

    def alloc_pages(self, count: int) -> list[int]:
        """What as many calls of ``alloc(0)`` return, without those that return None."""
        taken: list[int] = []
        for order, runs in enumerate(self._free):
            while runs.summary and count:
                at = runs.pop_least() << order
                size = 1 << order
                if size <= count:
                    taken += range(at, at + size)
                    count -= size
                else:
                    taken += range(at, at + count)
                    self._give_back(at + count, at + size)
                    count = 0
            if not count:
                break
        self._free_pages -= len(taken)
        return taken

    def _give_back(self, start: int, end: int) -> None:
        """Makes a run's end free again, ``end`` being where the run ended."""
        while start < end:
            order = (start & -start).bit_length() - 1
            self._free[order].add(start >> order)
            start += 1 << order

    def free(self, start: int, order: int) -> None:
        """Gives a run back and merges it with its free buddies."""
        free = self._free
        run = start >> order
        for runs in free[order:]:
            assert not runs.summary or run not in runs, "page run freed twice"
            run >>= 1
        run = start >> order
        self._free_pages += 1 << order
        while order + 1 < len(free):
            runs = free[order]
            if not runs.summary or run ^ 1 not in runs:
                break
            runs.remove(run ^ 1)
            run >>= 1
            order += 1
        free[order].add(run)

    def claim(self, start: int, order: int) -> None:
        """Takes exactly this run, which must be free: the inverse of ``free``."""
        free = self._free
        larger = order
        while larger < len(free) and start >> larger not in free[larger]:
            larger += 1
        assert larger < len(free), "claimed pages that are not free"
        free[larger].remove(start >> larger)
        while larger > order:
            larger -= 1
            free[larger].add((start >> larger) ^ 1)
        self._free_pages -= 1 << order

    def runs(self) -> list[list[int]]:
        """First pages of the free runs, per order: for audits and statistics."""
        return [[run << order for run in runs.members()] for order, runs in enumerate(self._free)]

    def coalesced(self) -> bool:
        """Whether every page is free and every buddy merged, as after construction."""
        return self._free == PageAllocator(self.pages)._free
