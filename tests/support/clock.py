"""A clock that moves only when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class FakeClock:
    """Implements ``headrace_kit.clock.Clock``."""

    def __init__(self, monotonic_s: float = 1000.0, wall_ms: int = 1_800_000_000_000) -> None:
        self._monotonic_s = monotonic_s
        self._wall_ms = float(wall_ms)

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return self._monotonic_s

    def wall_ms(self) -> int:
        """Unix time in milliseconds."""
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        """Moves both clocks forward."""
        assert seconds >= 0, "time does not go back; jump() the wall clock instead"
        self._monotonic_s += seconds
        self._wall_ms += seconds * 1000

    def jump(self, seconds: float) -> None:
        """Moves the wall clock alone, either way, as an administrator or NTP would."""
        self._wall_ms += seconds * 1000


@asynccontextmanager
async def passing(clock: FakeClock) -> AsyncGenerator[None]:
    """Time passes while the block runs, a tenth of a second at every turn: quickly, and never
    between two steps of what is tested.
    """

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.005)
            clock.advance(0.1)

    ticking = asyncio.ensure_future(tick())
    try:
        yield
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
