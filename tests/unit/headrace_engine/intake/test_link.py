"""The link to the server: one line per change, longer pauses, and back."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.intake.link import Link
from headrace_transport.errors import TransportUnavailable
from structlog.testing import capture_logs
from support.clock import FakeClock


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were made, without making them."""
    made: list[float] = []

    async def no_sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    return made


async def test_an_outage_is_said_once_and_its_end_once(pauses: list[float]) -> None:
    clock = FakeClock()
    link = Link(clock)
    with capture_logs() as logs:
        for _ in range(20):
            await link.failed(TransportUnavailable("gone"))
        assert not link.up
        clock.advance(7)
        link.succeeded()
        link.succeeded()

    assert link.up
    assert [entry["event"] for entry in logs] == ["wire.away", "wire.back"]
    assert logs[1]["away_s"] == 7
    assert len(pauses) == 20


async def test_pauses_grow_to_a_second_and_start_small_again(pauses: list[float]) -> None:
    link = Link(FakeClock())
    for _ in range(8):
        await link.failed(TransportUnavailable("gone"))
    link.succeeded()
    await link.failed(TransportUnavailable("gone"))

    assert pauses[:3] == [0.05, 0.1, 0.2]
    assert max(pauses) == pauses[7] == 1.0
    assert pauses[8] == 0.05
