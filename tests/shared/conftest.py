"""Fixtures of the suites that run against the real thing and its stand-in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator

import pytest
from support.redis import KINDS, RedisServer, binary_of, redis_server
from support.wires import Wires, opened

TRANSPORTS = ("memory", *KINDS)


@pytest.fixture(scope="session", params=TRANSPORTS)
def transport_server(request: pytest.FixtureRequest) -> Generator[RedisServer | None]:
    """A running server of each kind that there is here; None stands for the memory transport."""
    if request.param == "memory":
        yield None
        return
    if binary_of(request.param) is None:
        pytest.skip(f"no {request.param} server on PATH")
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(redis_server(request.param))


@pytest.fixture
async def wires(transport_server: RedisServer | None) -> AsyncGenerator[Wires]:
    """An empty deployment."""
    async with opened(transport_server) as wires:
        yield wires
