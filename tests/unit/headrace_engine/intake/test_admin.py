"""The engine's HTTP port."""

from __future__ import annotations

import asyncio
import socket
import urllib.error
import urllib.request
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


async def ask(health: FixedHealth, path: str) -> tuple[int, str, str]:
    """One request to a server that runs for it."""
    server = AdminServer(build_admin(health), "127.0.0.1", 0)
    running = asyncio.ensure_future(server.run())
    try:
        return await asyncio.to_thread(fetch, server.port, path)
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


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


def test_a_taken_port_is_an_error_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            AdminServer(build_admin(FixedHealth()), "127.0.0.1", taken.getsockname()[1])
