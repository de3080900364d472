"""A real server for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest
from headrace_transport.connection import (
    RedisEngineWire,
    RedisGatewayWire,
    connect_engine,
    connect_gateway,
)
from headrace_transport.options import WireOptions
from headrace_transport.server import Server
from support.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def shared_server() -> Generator[RedisServer]:
    """One server for the tests that leave it running."""
    with redis_server() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """The shared server, emptied."""
    shared_server.flush()
    return shared_server


@pytest.fixture
async def link(server: RedisServer) -> AsyncGenerator[Server]:
    """Behind the wire's back."""
    link = Server(server.url, password=None, options=WireOptions())
    yield link
    await link.close()


@pytest.fixture
async def gateway(server: RedisServer) -> AsyncGenerator[RedisGatewayWire]:
    wire = await connect_gateway(server.url)
    yield wire
    await wire.close()


@pytest.fixture
async def engine(server: RedisServer) -> AsyncGenerator[RedisEngineWire]:
    wire = await connect_engine(server.url)
    yield wire
    await wire.close()
