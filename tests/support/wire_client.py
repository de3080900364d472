"""A gateway on the real wire, as small as a test needs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from headrace_contracts.pb.queue_pb2 import Fence, Frame, RequestRecord
from headrace_transport.connection import RedisGatewayWire, connect_gateway
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import FIRST_FRAME, RequestState
from support.out_stream import OutStream

_LIMIT_S = 40.0
"""Bound of every wait; only a broken engine reaches it."""


class WireClient:
    """Submits, reads its out stream all the time, beats its heart."""

    def __init__(self, wire: RedisGatewayWire, name: str) -> None:
        self.wire = wire
        self.name = name
        self.entries: list[Frame | Fence] = []
        self.known: dict[int, list[int]] = {}
        """Tokens by slot that were received elsewhere, before a resume."""
        self._grew = asyncio.Event()

    @property
    def out(self) -> OutStream:
        """Everything received so far."""
        return OutStream(self.entries, self.known)

    async def submit(self, record: RequestRecord) -> None:
        """Queues a record."""
        await self.wire.submit(record, max_queued=10_000)

    async def until(self, condition: Callable[[OutStream], bool]) -> OutStream:
        """Waits until what was received fulfils a condition."""
        async with asyncio.timeout(_LIMIT_S):
            while not condition(self.out):
                self._grew.clear()
                await self._grew.wait()
        return self.out

    async def until_tokens(self, slot: int, count: int) -> OutStream:
        """Waits for so many tokens of a slot."""
        return await self.until(lambda out: len(out.tokens.get(slot, ())) >= count)

    async def until_finished(self, *slots: int) -> OutStream:
        """Waits for the end of these slots."""
        return await self.until(lambda out: set(slots) <= set(out.finishes))

    async def settled(
        self, request: str, status: Literal["queued", "running", "finished"] = "finished"
    ) -> RequestState:
        """Waits until the request has this status."""
        async with asyncio.timeout(_LIMIT_S):
            while True:
                with contextlib.suppress(TransportUnavailable):
                    state = await self.wire.request_state(request)
                    if state is not None and state.status == status:
                        return state
                await asyncio.sleep(0.02)

    async def run(self) -> None:
        """Reads and beats until cancelled."""
        after = FIRST_FRAME
        while True:
            try:
                await self.wire.beat_gateway(self.name, ttl_ms=30_000)
                found = await self.wire.read_out(self.name, after, block_ms=500)
            except TransportUnavailable:
                await asyncio.sleep(0.1)
                continue
            if found:
                after = found[-1].id
                self.entries += [entry.item for entry in found if entry.item is not None]
                self._grew.set()


@contextlib.asynccontextmanager
async def wire_client(url: str, name: str = "gw") -> AsyncGenerator[WireClient]:
    """A running client."""
    wire = await connect_gateway(url)
    client = WireClient(wire, name)
    await wire.beat_gateway(name, ttl_ms=30_000)
    reading = asyncio.ensure_future(client.run())
    try:
        yield client
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        await wire.close()
