"""LeaseKeeper: renews the leases of what is held while the engine makes progress, and beats the heart.

Owner    io thread
Writes   nothing of its own; lets requests go, passes cancels on
Never    renews for an engine whose passes stand still with work resident
Rules    lease.lost-is-silent, lease.wedged-engine-loses
Next     headrace_engine.intake.control
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import EngineInfo, EngineWire, Wait

from headrace_engine.intake.desk import Desk
from headrace_engine.intake.link import Link

log = get_logger(__name__)

_PER_LEASE = 3
"""Renewals in the time of one lease, at least."""
_LONGEST_PAUSE_S = 2.0
"""A server that came back empty has the card again, and no stale lease, within this time."""

State = Literal["loading", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine says of itself, from its newest snapshot."""

    running: int
    waiting: int
    free_blocks: int
    """Free or evictable."""
    total_blocks: int
    waits: Mapping[str, Wait]
    """Of requests that wait inside, by id."""


class Progress:
    """Whether the engine moves: passes go on, or nothing is resident."""

    def __init__(
        self,
        *,
        clock: Clock,
        stall_s: float,
        passes: Callable[[], int],
        resident: Callable[[], int],
    ) -> None:
        """``stall_s`` is the longest that one pass may take before the engine counts as stuck."""
        self._clock = clock
        self._stall_s = stall_s
        self._passes = passes
        self._resident = resident
        self._last = -1
        self._moved_s = clock.monotonic()

    @property
    def stalled_s(self) -> float:
        """Seconds since a pass began, 0 while nothing is resident."""
        now = self._clock.monotonic()
        passes = self._passes()
        if passes != self._last or not self._resident():
            self._last = passes
            self._moved_s = now
        return now - self._moved_s

    @property
    def alive(self) -> bool:
        """False: the engine is stuck."""
        return self.stalled_s < self._stall_s


class LeaseKeeper:
    """Renews request leases and the process's own, and clears what the dead left."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        model: str,
        engine: str,
        desk: Desk,
        link: Link,
        progress: Progress,
        load: Callable[[], Load],
        put_card: Callable[[], Awaitable[None]],
        lease_ms: int,
    ) -> None:
        """``put_card`` writes the model's card again when the server has lost it."""
        self._wire = wire
        self._model = model
        self._engine = engine
        self._desk = desk
        self._link = link
        self._progress = progress
        self._load = load
        self._put_card = put_card
        self._lease_ms = lease_ms
        self._wedged = False
        self.state: State = "loading"

    async def run(self) -> None:
        """Renews and beats until cancelled."""
        interval_s = min(self._lease_ms / 1000 / _PER_LEASE, _LONGEST_PAUSE_S)
        while True:
            try:
                await self.renew(self._desk.holdings.attempts())
                await self.beat()
                if await self._wire.card(self._model) is None:
                    await self._put_card()  # the server came back empty
                await self._wire.reap(self._model)
                self._link.succeeded()
            except TransportUnavailable as error:
                await self._link.failed(error)
            else:
                await asyncio.sleep(interval_s)

    async def renew(self, attempts: Mapping[str, int]) -> None:
        """Extends the leases of ``attempts``; lets go what is lost, passes on what is cancelled."""
        if not self._moving() or not attempts:
            return
        result = await self._wire.renew(
            self._model, self._engine, attempts, lease_ms=self._lease_ms
        )
        for request in result.lost:
            held = self._desk.holdings.get(request)
            # What is over is being finished: the answer to that says whose it was.
            if held is not None and held.attempt == attempts[request] and not held.over:
                self._desk.let_go(held, "lost")
        for request, marks in result.cancelled.items():
            self._desk.cancel_marked(request, marks)

    async def ready(self) -> None:
        """Says that this process serves now, at once where the server answers."""
        self.state = "ready"
        with contextlib.suppress(TransportUnavailable):  # the next round says it again
            await self.beat()

    async def beat(self) -> None:
        """Says that this process lives, and how loaded it is."""
        await self._wire.beat_engine(self.info(), ttl_ms=self._lease_ms)

    def info(self) -> EngineInfo:
        """This process, as others see it."""
        load = self._load()
        return EngineInfo(
            process=self._engine,
            model=self._model,
            state=self.state,
            running=load.running,
            waiting=load.waiting,
            free_blocks=load.free_blocks,
            total_blocks=load.total_blocks,
            waits=load.waits,
        )

    def _moving(self) -> bool:
        wedged = not self._progress.alive
        if wedged and not self._wedged:
            log.error("engine.stalled", stalled_s=round(self._progress.stalled_s, 1))
        elif self._wedged and not wedged:
            log.warning("engine.moves_again")
        self._wedged = wedged
        return not wedged
