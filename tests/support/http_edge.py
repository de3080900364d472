"""The HTTP edge over fakes, and a connection spoken by hand."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from dataclasses import dataclass, field

import httpx
import uvicorn
from fastapi import FastAPI
from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.http.api import build_api
from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Registry
from headrace_kit.traces import Tracing
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.fake_inference import (
    KEY,
    FakeAuth,
    FakeHttpSettings,
    FakeInference,
    FakeReadiness,
)
from support.waiting import PATIENCE_S


@dataclass
class Edge:
    """An application and what it stands on."""

    settings: FakeHttpSettings = field(default_factory=FakeHttpSettings)
    service: FakeInference = field(default_factory=FakeInference)
    auth: FakeAuth = field(default_factory=FakeAuth)
    readiness: FakeReadiness = field(default_factory=FakeReadiness)
    clock: FakeClock = field(default_factory=FakeClock)
    broker: MemoryBroker = field(default_factory=MemoryBroker)
    metrics: GatewayMetrics = field(
        default_factory=lambda: GatewayMetrics(Registry(service="gateway"))
    )

    tracing: Tracing = field(default_factory=Tracing)

    @property
    def keys(self) -> KeyStore:
        """The deployment's keys, in memory."""
        return KeyStore(MemoryGatewayWire(self.broker), b"0123456789abcdef", self.clock)

    def build(self) -> FastAPI:
        return build_api(
            service=self.service,
            auth=self.auth,
            keys=self.keys,
            settings=self.settings,
            metrics=self.metrics,
            readiness=self.readiness,
            clock=self.clock,
            tracing=self.tracing,
        )

    def client(self, *, key: str | None = KEY, app: FastAPI | None = None) -> httpx.AsyncClient:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app or self.build()),
            base_url="http://gateway",
            headers=headers,
        )


class QuietServer(uvicorn.Server):
    """A server that leaves the process's signals alone and says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


class Wire:
    """One connection, spoken by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        first, *lines = raw.decode("latin-1").strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), {name.lower(): value for name, value in pairs}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next whole answer, if it has a length."""
        status, headers = await self.head()
        body = await asyncio.wait_for(
            self.reader.readexactly(int(headers.get("content-length", "0"))), PATIENCE_S
        )
        return status, headers, body

    async def chunk(self) -> bytes:
        """The next piece of a chunked body; empty at its end."""
        size = int(await asyncio.wait_for(self.reader.readline(), PATIENCE_S), 16)
        piece = await asyncio.wait_for(self.reader.readexactly(size + 2), PATIENCE_S)
        return piece[:-2]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
