"""A real server for the tests of this folder."""

from __future__ import annotations

from collections.abc import Generator

import pytest
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
def own_server() -> Generator[RedisServer]:
    """A server that the test may kill."""
    with redis_server() as server:
        yield server
