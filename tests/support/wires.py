"""Both transports behind one face, for the suite that runs against each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import (
    CancelMark,
    Frame,
    LogEntry,
    RequestRecord,
    RowFinish,
    Usage,
)
from headrace_transport.connection import connect_engine, connect_gateway
from headrace_transport.interface import Claimed, EngineWire, GatewayWire
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from headrace_transport.options import WireOptions
from support.clock import FakeClock
from support.redis import RedisServer

MODEL = "org/model-1"
GATEWAY = "gw-1.a"
LEASE_MS = 60_000
SHORT_MS = 60
"""A lease that a test lets expire."""
SOON_MS = 500
"""Time in which a few calls are surely over, also on a busy machine."""
OPTIONS = WireOptions(
    state_ttl_ms=5 * SOON_MS,
    log_ttl_ms=2 * SOON_MS,
    blob_ttl_ms=2 * SOON_MS,
    sign_of_life_ms=60_000,
    op_timeout_s=20,
)


class Wires(Protocol):
    """One deployment: as many ends as a test wants, and time that passes."""

    async def gateway(self) -> GatewayWire: ...

    async def engine(self) -> EngineWire: ...

    async def pass_ms(self, ms: int) -> None:
        """Lets time pass for leases and lifetimes."""
        ...

    async def flush(self) -> None:
        """Loses everything the server holds."""
        ...

    async def close(self) -> None: ...


class RedisWires:
    """Over a real server."""

    def __init__(self, server: RedisServer, options: WireOptions) -> None:
        self.server = server
        self._options = options
        self._stack = contextlib.AsyncExitStack()

    async def gateway(self) -> GatewayWire:
        wire = await connect_gateway(self.server.url, options=self._options)
        self._stack.push_async_callback(wire.close)
        return wire

    async def engine(self) -> EngineWire:
        wire = await connect_engine(self.server.url, options=self._options)
        self._stack.push_async_callback(wire.close)
        return wire

    async def pass_ms(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def flush(self) -> None:
        self.server.flush()

    async def close(self) -> None:
        await self._stack.aclose()


class MemoryWires:
    """In memory."""

    def __init__(self, options: WireOptions) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock, options=options)

    async def gateway(self) -> GatewayWire:
        return MemoryGatewayWire(self.broker)

    async def engine(self) -> EngineWire:
        return MemoryEngineWire(self.broker)

    async def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms / 1000)

    async def flush(self) -> None:
        self.broker.flush()

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def opened(
    server: RedisServer | None, options: WireOptions = OPTIONS
) -> AsyncGenerator[Wires]:
    """Wires over an emptied server, or in memory."""
    wires: Wires
    if server is None:
        wires = MemoryWires(options)
    else:
        server.flush()
        wires = RedisWires(server, options)
    try:
        yield wires
    finally:
        await wires.close()


# records
def record(
    name: str,
    *,
    slot: int = 10,
    tenant: str = "acme",
    band: int = 1,
    prompt: Sequence[int] = (1, 2, 3),
    n: int = 1,
    key_id: str = "key1",
    gateway: str = GATEWAY,
    deadline_ms: int = 0,
    attempt: int = 0,
    model: str = MODEL,
) -> RequestRecord:
    """A record that may be queued."""
    return RequestRecord(
        version=WIRE_VERSION,
        id=name,
        model=model,
        gateway=gateway,
        slot=slot,
        tenant=tenant,
        band=band,
        key_id=key_id,
        prompt=prompt,
        n=n,
        deadline_ms=deadline_ms,
        attempt=attempt,
    )


def frame(
    tokens: Sequence[int],
    *,
    slot: int = 10,
    attempt: int = 1,
    first: int = 0,
    finish: RowFinish | None = None,
) -> Frame:
    """A frame of one row."""
    made = Frame(
        version=WIRE_VERSION,
        slots=[slot],
        attempts=[attempt],
        firsts=[first],
        counts=[len(tokens)],
        tokens=tokens,
        logged=[0],
    )
    if finish is not None:
        made.finishes.append(finish)
    return made


def entry(
    tokens: Sequence[int],
    *,
    choice: int = 0,
    first: int = 0,
    attempt: int = 1,
    frame_id: str = "",
) -> LogEntry:
    """A log entry of one row."""
    return LogEntry(
        version=WIRE_VERSION,
        attempt=attempt,
        choices=[choice],
        firsts=[first],
        counts=[len(tokens)],
        tokens=tokens,
        frame_id=frame_id,
    )


def mark(
    reason: FinishReason = FinishReason.CANCELLED,
    *,
    choice: int | None = None,
) -> CancelMark:
    """A cancel mark."""
    return CancelMark(reason=f"FINISH_REASON_{reason.name}", choice=choice)


# steps
async def claim(
    engine: EngineWire, name: str = "e-1", *, credit: int = 8, lease_ms: int = LEASE_MS
) -> dict[str, Claimed]:
    """A claim, by id."""
    claimed = await engine.claim(MODEL, name, credit=credit, lease_ms=lease_ms)
    return {each.record.id: each for each in claimed}


async def finish(
    engine: EngineWire,
    request: str,
    *,
    name: str = "e-1",
    attempt: int = 1,
    generated: int = 0,
    last: LogEntry | None = None,
) -> bool:
    """A finish as STOP; whether it was ours."""
    settled = await engine.finish(
        MODEL,
        name,
        request,
        attempt,
        entry=last if last is not None else LogEntry(),
        reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=3, completion_tokens=generated),
    )
    return settled.ours
