"""Streams and the bell of the memory transport: like Redis's, within one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headrace_transport.takeover import frame_order

T = TypeVar("T")


class Stream(Generic[T]):
    """Entries with ids that grow, ``<ms>-<n>``."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._last = (0, 0)
        self._entries: list[tuple[str, T]] = []
        self._grew = asyncio.Event()

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, item: T) -> str:
        """Adds an entry; returns its id."""
        now = self._now_ms()
        last_ms, number = self._last
        self._last = (now, 0) if now > last_ms else (last_ms, number + 1)
        name = f"{self._last[0]}-{self._last[1]}"
        self._entries.append((name, item))
        self._grew.set()
        return name

    def after(self, after: str, before: str | None = None) -> list[tuple[str, T]]:
        """Entries between two ids, both excluded."""
        start = frame_order(after)
        end = frame_order(before) if before is not None else None
        return [
            entry
            for entry in self._entries
            if frame_order(entry[0]) > start and (end is None or frame_order(entry[0]) < end)
        ]

    async def read(self, after: str, *, block_ms: int) -> Sequence[tuple[str, T]]:
        """Entries after an id; empty when none came within ``block_ms``."""
        try:
            async with asyncio.timeout(block_ms / 1000):
                while not (found := self.after(after)):
                    self._grew.clear()
                    await self._grew.wait()
        except TimeoutError:
            return []
        return found

    def trim(self, below: str) -> None:
        """Drops entries with an id below ``below``."""
        limit = frame_order(below)
        self._entries = [entry for entry in self._entries if frame_order(entry[0]) >= limit]


class Bell:
    """Strokes that each wake one waiter, kept while nobody waits, up to a bound."""

    BOUND = 16

    def __init__(self) -> None:
        self._strokes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def ring(self, *, at_most: int = BOUND) -> None:
        """Wakes the longest waiter, or keeps the stroke while fewer than ``at_most`` are kept."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        if self._strokes < at_most:
            self._strokes += 1

    def hush(self) -> None:
        """Drops the strokes that are kept."""
        self._strokes = 0

    async def wait(self, *, timeout_ms: int) -> bool:
        """Takes a stroke; False when there was none within the time."""
        if self._strokes:
            self._strokes -= 1
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except TimeoutError:
            return False
        return True
