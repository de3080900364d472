"""The gRPC server of a gateway over the wire in memory, and a client with a key."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from headrace_contracts.pb.inference_pb2 import GenerateEvent, GenerateRequest, ResumeRequest
from headrace_contracts.pb.inference_pb2_grpc import InferenceStub
from headrace_gateway.auth.keys import Authenticator, KeyStore
from headrace_gateway.rpc.server import RpcServer
from headrace_kit.clock import SystemClock
from headrace_kit.traces import Tracing
from headrace_transport.memory import MemoryGatewayWire
from support.wire import MODEL, Gateway, Stack

PEPPER = b"0123456789abcdef"


class Served:
    """A started gRPC server with its stack, and a client with a key."""

    def __init__(self, stack: Stack, gateway: Gateway, rpc: RpcServer, key: str) -> None:
        self.stack = stack
        self.gateway = gateway
        self.rpc = rpc
        self.key = key
        self.channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}")
        self.inference: Any = InferenceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What opens the door."""
        return (("authorization", f"Bearer {self.key}"),)

    def generate(self, timeout: float | None = 20, **fields: Any) -> Any:
        """A running Generate call."""
        request = GenerateRequest(model=MODEL, **fields)
        return self.inference.Generate(request, metadata=self.metadata, timeout=timeout)

    def resume(self, request: str, after: str) -> Any:
        """A running Resume call."""
        return self.inference.Resume(
            ResumeRequest(id=request, after=after), metadata=self.metadata, timeout=20
        )


@asynccontextmanager
async def served(
    tracing: Tracing | None = None, *, beside: Served | None = None, **settings: Any
) -> AsyncGenerator[Served]:
    """The server, started and stopped. ``beside``: a second gateway of that one's stack and key."""
    stack = Stack() if beside is None else beside.stack
    name = "gateway-a" if beside is None else "gateway-b"
    gateway = stack.gateway(name, grpc_port=0, **settings)
    wire = MemoryGatewayWire(stack.broker)
    if beside is None:
        token, _ = await KeyStore(wire, PEPPER, SystemClock()).create(name="test")
    else:
        token = beside.key
    auth = Authenticator(wire, PEPPER, SystemClock(), cache_s=0)
    async with gateway.running() as service:
        await stack.engine.appear()
        rpc = RpcServer(
            service, auth, gateway.metrics, gateway.readiness, gateway.settings, tracing
        )
        await rpc.start()
        it = Served(stack, gateway, rpc, token)
        try:
            yield it
        finally:
            await it.channel.close()
            await rpc.stop(0)


async def events_of(call: Any) -> list[GenerateEvent]:
    """All events of a call."""
    return [event async for event in call]


async def failure_of(call: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(call)
    return caught.value


async def closed(gateway: Gateway) -> bool:
    """Whether the gateway has no open call left."""
    return gateway.value("headrace_gateway_requests_open") == 0


async def queued(stack: Stack) -> bool:
    """Whether a request waits."""
    return not await stack.queue_is_empty()
