"""The engine's HTTP port."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from headrace_engine.intake.admin import AdminServer, build_admin


@dataclass
class FixedHealth:
    """Implements ``Health``."""

    alive: bool = True
    problems: list[str] = field(default_factory=list[str])

    def exposition(self) -> tuple[bytes, str]:
        """Two lines."""
        return b"a 1\nb 2\n", "text/plain; version=0.0.4; charset=utf-8"


def fetch(port: int, path: str) -> tuple[int, str, str]:
    """Status, type and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"] or "", error.read().decode()


@asynccontextmanager
async def serving(health: FixedHealth) -> AsyncGenerator[int]:
    """The port of a server that runs meanwhile."""
    server = AdminServer(build_admin(health), "127.0.0.1", 0)
    running = asyncio.ensure_future(server.run())
    try:
        yield server.port
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def ask(health: FixedHealth, path: str) -> tuple[int, str, str]:
    """One request to a server that runs for it."""
    async with serving(health) as port:
        return await asyncio.to_thread(fetch, port, path)


async def test_liveness_and_readiness_are_two_things() -> None:
    health = FixedHealth(alive=True, problems=["draining"])

    assert (await ask(health, "/health/live"))[0] == 200
    status, _, body = await ask(health, "/health/ready")
    assert (status, "draining" in body) == (503, True)


async def test_a_stuck_engine_is_not_alive() -> None:
    assert (await ask(FixedHealth(alive=False), "/health/live"))[0] == 503


async def test_a_ready_engine_says_so() -> None:
    assert (await ask(FixedHealth(), "/health/ready"))[0] == 200


async def test_metrics_have_the_type_that_scrapers_expect() -> None:
    status, kind, body = await ask(FixedHealth(), "/metrics")

    assert (status, body) == (200, "a 1\nb 2\n")
    assert kind.startswith("text/plain; version=0.0.4")


async def test_anything_else_is_not_there() -> None:
    assert (await ask(FixedHealth(), "/"))[0] == 404


async def test_a_head_without_end_is_not_read_to_its_end() -> None:
    def pour(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            for _ in range(64):
                line.sendall(b"a" * (1 << 20))

    async with serving(FixedHealth()) as port:
        with pytest.raises(ConnectionError):
            await asyncio.to_thread(pour, port)
        assert (await asyncio.to_thread(fetch, port, "/health/live"))[0] == 200


def test_a_taken_port_is_an_error_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            AdminServer(build_admin(FixedHealth()), "127.0.0.1", taken.getsockname()[1])
