"""DueTimes: when something has to be done for a sequence.

Owner    engine thread
Writes   its own heap
Never    reads a clock; grows with those that are gone
Rules    order.ageing
Next     headrace_engine.loop.lifecycle
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

ROOM: Final = 1024
"""Times that come before it is worth looking whose have become idle."""


class DueTimes:
    """Times by number. Most sequences are gone before their time, which may be a day away.

    Invariants
        a number in ``present`` stands in it as often as it was added and has not come up since
        at most twice as many times stand in it as of those that were present when it looked, and ``ROOM``
    """

    __slots__ = ("_full", "_heap", "_present")

    def __init__(self, present: Container[int]) -> None:
        """``present`` are the numbers whose times matter, now and whenever it is asked."""
        self._present = present
        self._heap: list[tuple[float, int]] = []
        self._full = ROOM

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_s: float, number: int) -> None:
        """Something is due for this number at ``at_s``."""
        if len(self._heap) >= self._full:
            self._heap = [due for due in self._heap if due[1] in self._present]
            heapify(self._heap)
            self._full = 2 * len(self._heap) + ROOM
        heappush(self._heap, (at_s, number))

    def until(self, now_s: float) -> Iterator[int]:
        """Takes out what is due by ``now_s``, in order of time: numbers that are present."""
        while self._heap and self._heap[0][0] <= now_s:
            number = heappop(self._heap)[1]
            if number in self._present:
                yield number
