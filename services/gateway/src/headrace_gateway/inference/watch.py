"""What a gateway does for models rather than for calls: their gauges, and a sweep for all.

Next: headrace_gateway.inference.service
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import transport_errors
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rounds import Rounds

GAUGES_EVERY_S: Final = 1.0


class ModelGauges:
    """Queues and engines of every model as gauges, with no engine at hand too. While the server
    cannot be read there are none, nor of a model whose numbers cannot be: an old one would be believed.
    """

    def __init__(self, wire: GatewayWire, catalog: Catalog, metrics: GatewayMetrics) -> None:
        self._wire = wire
        self._catalog = catalog
        self._metrics = metrics
        self._shown: set[str] = set()
        self._rounds = Rounds("gauges.missed")

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(GAUGES_EVERY_S)

    async def look(self) -> None:
        """Once."""
        there: set[str] = set()
        whole = False
        with self._rounds.guarded():
            for name in await self._catalog.cards():
                with self._rounds.one(name):
                    with transport_errors():
                        depth = await self._wire.queue_depth(name)
                    engines = await self._catalog.engines(name)
                    ready = sum(engine.state == "ready" for engine in engines)
                    self._metrics.queue_depth.labels(name).set(depth)
                    self._metrics.engines_ready.labels(name).set(ready)
                    there.add(name)
                    self._shown.add(name)
            whole = True
        if not whole:
            there.clear()
        for name in self._shown - there:
            self._metrics.queue_depth.remove(name)
            self._metrics.engines_ready.remove(name)
        self._shown = there


class Sweeper:
    """Ends what nobody else would end: requests of dead gateways and past deadlines, in the queue
    of a model that no engine serves. One gateway at a time does it.
    """

    def __init__(
        self, wire: GatewayWire, catalog: Catalog, process: str, *, lease_s: float
    ) -> None:
        self._wire = wire
        self._catalog = catalog
        self._process = process
        self._lease_s = lease_s
        self._rounds = Rounds("sweep.missed")

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await self.sweep()

    async def sweep(self) -> None:
        """Once, if it is this process's turn."""
        with self._rounds.guarded():
            if await self._wire.take_sweep(self._process, ttl_ms=int(self._lease_s * 1000)):
                for name in await self._catalog.cards():
                    with self._rounds.one(name):
                        await self._wire.reap(name)
