"""What every test run shares."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import structlog
from hypothesis import settings
from support.redis import RedisServer, redis_server

# Timings on a shared machine are noise: no test fails for being slow on one example.
settings.register_profile("headrace", deadline=None, print_blob=True)
settings.load_profile("headrace")

# Plain lines: the default form draws every local variable of a traceback, which takes seconds.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ]
)


@pytest.fixture
def own_server() -> Generator[RedisServer]:
    """A server that the test may kill."""
    with redis_server() as server:
        yield server
