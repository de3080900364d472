"""Drainer: stops claiming, lets what runs finish, hands the rest back. Nothing vanishes.

Owner    io thread
Writes   Holdings, through the desk
Never    takes longer than its grace and the time of four exchanges
Rules    drain.nothing-vanishes, drain.failed-without-blame
Next     headrace_engine.app
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable

from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import EngineWire

from headrace_engine.intake.consumer import Consumer
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held
from headrace_engine.intake.lease import LeaseKeeper
from headrace_engine.intake.publisher import Publisher
from headrace_engine.intake.publisher_log import LogWriter

log = get_logger(__name__)

_EXCHANGE_S = 1.0
"""Longest wait for the server in each of the last steps: the process must end."""


class Drainer:
    """Used once, at the end of the process, while the other coroutines still run."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        model: str,
        engine: str,
        desk: Desk,
        consumer: Consumer,
        publisher: Publisher,
        log_writer: LogWriter,
        keeper: LeaseKeeper,
    ) -> None:
        self._wire = wire
        self._model = model
        self._engine = engine
        self._desk = desk
        self._consumer = consumer
        self._publisher = publisher
        self._log_writer = log_writer
        self._keeper = keeper

    async def drain(self, grace_s: float) -> None:
        """Returns when nothing is held any more."""
        self._keeper.state = "draining"
        log.info("engine.draining", held=len(self._desk.holdings), grace_s=grace_s)
        await self._within(_EXCHANGE_S, self._stop_claiming())
        await self._hand_back_waiting()
        await self._wait_until_empty(grace_s)
        await self._within(_EXCHANGE_S, self._write_down())
        await self._hand_back(self._desk.holdings)

    async def abandon(self, *, told: bool) -> None:
        """After the engine failed: hands back what is not to blame: what no pass has touched, or what
        the engine spared.

        The leases of what else ran are left to lapse: a request that breaks engines is counted so.
        An engine that died has not ``told`` everything. Any request that it was given may have
        been in the pass that killed it, so that only what never reached it is without blame.
        """
        self._keeper.state = "draining"
        await self._within(_EXCHANGE_S, self._stop_claiming())
        await self._within(_EXCHANGE_S, self._write_down())
        await self._hand_back(
            held
            for held in self._desk.holdings
            if not held.over and (held.spared or not (held.started if told else held.pushed))
        )
        for held in self._desk.holdings:
            if not held.over:
                self._desk.let_go(held, "failed")
        await self._wait_until_empty(_EXCHANGE_S)  # what has ended is being settled

    async def _hand_back_waiting(self) -> None:
        await self._hand_back(
            held for held in self._desk.holdings if not held.started and not held.over
        )

    async def _stop_claiming(self) -> None:
        await self._consumer.stop()
        await self._keeper.beat()

    async def _wait_until_empty(self, grace_s: float) -> None:
        try:
            async with asyncio.timeout(grace_s):
                while len(self._desk.holdings):
                    self._desk.room.clear()
                    await self._desk.room.wait()
        except TimeoutError:
            log.warning("drain.grace_over", held=len(self._desk.holdings))

    async def _write_down(self) -> None:
        """What is published or logged now need not be decided again."""
        await self._publisher.flushed()
        await self._log_writer.write([held for held in self._desk.holdings if not held.over])

    async def _hand_back(self, requests: Iterable[Held]) -> None:
        attempts: dict[str, int] = {}
        for held in list(requests):
            attempts[held.id] = held.attempt
            self._desk.let_go(held, "released")
        if attempts:
            await self._within(_EXCHANGE_S, self._wire.release(self._model, self._engine, attempts))

    async def _within(self, seconds: float, step: Coroutine[object, object, None]) -> None:
        """Goes on without a step that takes too long or finds no server: leases lapse instead."""
        try:
            async with asyncio.timeout(seconds):
                await step
        except (TimeoutError, TransportUnavailable) as error:
            log.warning("drain.step_skipped", step=step.__qualname__, error=repr(error))
