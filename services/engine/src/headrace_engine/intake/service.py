"""Intake: everything between the wire and the engine's door, built once and run together.

Owner    io thread
Writes   nothing of its own
Never    outlives its wire
Rules    intake.credit, lease.wedged-engine-loses
Next     headrace_engine.intake.consumer
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from headrace_kit.clock import Clock
from headrace_kit.metrics import Registry
from headrace_kit.traces import Tracing
from headrace_transport.interface import EngineWire, Wait

from headrace_engine.intake.book import RowBook
from headrace_engine.intake.consumer import Consumer
from headrace_engine.intake.control import ControlReader
from headrace_engine.intake.desk import Desk, IntakeDoor
from headrace_engine.intake.drain import Drainer
from headrace_engine.intake.held import Holdings
from headrace_engine.intake.lease import LeaseKeeper, Load, Progress
from headrace_engine.intake.link import Link
from headrace_engine.intake.publisher import Publisher
from headrace_engine.intake.publisher_log import LogWriter
from headrace_engine.intake.spans import Spans
from headrace_engine.intake.validate import Bounds
from headrace_engine.metrics import EngineMetrics, IntakeState
from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import PassOutputs


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """What intake needs of the engine's settings; meanings as there."""

    slots: int
    max_waiting: int
    lease_ms: int
    stall_s: float
    buffer_tokens: int


class Intake:
    """The io thread's half of an engine."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        door: IntakeDoor,
        engine: str,
        bounds: Bounds,
        settings: IntakeSettings,
        snapshot: Callable[[], ScheduleMetrics],
        registry: Registry,
        clock: Clock,
        put_card: Callable[[], Awaitable[None]],
        drain: Callable[[float | None], None],
        tracing: Tracing | None = None,
    ) -> None:
        """``engine`` is this process's id. ``put_card`` writes the model's card (again). ``drain``
        is called when an operator asks for it. Without ``tracing``, traces go nowhere.
        """
        self.model = bounds.model
        self._wire = wire
        self._snapshot = snapshot
        self.metrics = EngineMetrics(registry, snapshot, self.state)
        self.link = Link(clock)
        self._holdings = Holdings(slots=settings.slots, max_waiting=settings.max_waiting)
        self._desk = Desk(
            door=door,
            holdings=self._holdings,
            book=RowBook(),
            metrics=self.metrics,
            spans=Spans(tracing or Tracing(), clock),
        )
        self.progress = Progress(
            clock=clock,
            stall_s=settings.stall_s,
            passes=lambda: snapshot().pass_id,
            resident=lambda: self._holdings.resident,
        )
        self._publisher = Publisher(
            wire=wire,
            engine=engine,
            desk=self._desk,
            link=self.link,
            metrics=self.metrics,
            clock=clock,
            buffer_tokens=settings.buffer_tokens,
        )
        self._log_writer = LogWriter(
            wire=wire,
            model=bounds.model,
            engine=engine,
            desk=self._desk,
            publisher=self._publisher,
            link=self.link,
            metrics=self.metrics,
            clock=clock,
        )
        self.keeper = LeaseKeeper(
            wire=wire,
            model=bounds.model,
            engine=engine,
            desk=self._desk,
            link=self.link,
            progress=self.progress,
            load=self._load,
            put_card=put_card,
            lease_ms=settings.lease_ms,
        )
        self._consumer = Consumer(
            wire=wire,
            engine=engine,
            bounds=bounds,
            desk=self._desk,
            publisher=self._publisher,
            link=self.link,
            progress=self.progress,
            metrics=self.metrics,
            clock=clock,
            lease_ms=settings.lease_ms,
        )
        self._control = ControlReader(
            wire=wire,
            model=bounds.model,
            engine=engine,
            desk=self._desk,
            link=self.link,
            sending=self._publisher.sending,
            drain=drain,
        )
        self._drainer = Drainer(
            wire=wire,
            model=bounds.model,
            engine=engine,
            desk=self._desk,
            consumer=self._consumer,
            publisher=self._publisher,
            log_writer=self._log_writer,
            keeper=self.keeper,
        )

    async def run(self) -> None:
        """Serves until cancelled. An error in any part ends all of them."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(), name="publisher")
            group.create_task(self._log_writer.run(), name="log writer")
            group.create_task(self.keeper.run(), name="lease keeper")
            group.create_task(self._control.run(), name="control")
            group.create_task(self._consumer.run(), name="consumer")

    def take(self, batch: list[PassOutputs]) -> None:
        """Passes from the signal thread, called on the io thread."""
        self._publisher.take(batch)

    async def drain(self, grace_s: float) -> None:
        """Ends what can end within ``grace_s`` and hands the rest back; ``run`` goes on meanwhile."""
        await self._drainer.drain(grace_s)

    async def abandon(self, *, told: bool) -> None:
        """After the engine failed: no further claim; what no pass has touched goes back at once.

        Not ``told``: it died without a word, and what it was given does not go back.
        """
        await self._drainer.abandon(told=told)

    def state(self) -> IntakeState:
        """What io holds now."""
        return IntakeState(
            held=len(self._holdings),
            unpublished_tokens=self._publisher.waiting_tokens,
            wire_up=self.link.up,
            stalled_s=self.progress.stalled_s,
            foreign={**self._wire.foreign.counts},
            damaged={**self._wire.damaged.counts},
        )

    @property
    def problems(self) -> list[str]:
        """Why new requests are not claimed and served now; empty: they are."""
        problems: list[str] = []
        if self.keeper.state != "ready":
            problems.append(self.keeper.state)
        if not self.link.up:
            problems.append("the server does not answer")
        if not self.progress.alive:
            problems.append("the engine is stuck")
        return problems

    def _load(self) -> Load:
        state = self._snapshot()
        return Load(
            running=state.running,
            waiting=state.waiting,
            free_blocks=state.free_blocks + state.cached_blocks,
            total_blocks=state.total_blocks,
            waits=self._waits(state),
        )

    def _waits(self, state: ScheduleMetrics) -> Mapping[str, Wait]:
        """By request; of several choices, the first tells."""
        waits: dict[str, Wait] = {}
        for waiting in state.waits:
            held = self._holdings.of(waiting.handle)
            if held is not None:
                waits.setdefault(held.id, Wait(waiting.reason, waiting.detail))
        return waits
