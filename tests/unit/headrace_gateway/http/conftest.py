"""The edge over fakes: called in memory with httpx, or on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from headrace_gateway.http.protocol import EdgeProtocol
from support.http_edge import Edge, QuietServer, Wire


@pytest.fixture
def edge() -> Edge:
    return Edge()


@pytest.fixture
async def client(edge: Edge) -> AsyncIterator[httpx.AsyncClient]:
    async with edge.client() as client:
        yield client


@pytest.fixture
async def address(edge: Edge) -> AsyncIterator[tuple[str, int]]:
    """The same application on a real server, for tests in which bytes matter."""
    config = uvicorn.Config(
        edge.build(),
        http=EdgeProtocol,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,  # what no longer ends is a test that failed, not one that hangs
    )
    server = QuietServer(config)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    await server.up.wait()
    host, port = listening.getsockname()
    yield host, port
    server.should_exit = True
    await serving
    listening.close()


@pytest.fixture
async def wire(address: tuple[str, int]) -> AsyncIterator[Wire]:
    connection = Wire(*await asyncio.open_connection(*address))
    yield connection
    await connection.close()
