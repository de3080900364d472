"""Leases: renewed while the engine moves, given up when it does not."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.intake.lease import Progress
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.fake_engine import IntakeBench
from support.held import make_record


def progress(clock: FakeClock, passes: list[int], resident: list[int]) -> Progress:
    """Progress with a bound of ten seconds, over values that the test changes."""
    return Progress(
        clock=clock, stall_s=10.0, passes=lambda: passes[0], resident=lambda: resident[0]
    )


def test_an_engine_that_passes_is_alive_however_long_it_runs() -> None:
    clock, passes = FakeClock(), [0]
    watched = progress(clock, passes, [1])
    for _ in range(30):
        clock.advance(9)
        passes[0] += 1
        assert watched.alive


def test_an_engine_whose_passes_stand_still_with_work_is_stuck() -> None:
    clock, passes = FakeClock(), [5]
    watched = progress(clock, passes, [1])
    assert watched.alive

    clock.advance(10)

    assert not watched.alive
    assert watched.stalled_s == 10
    passes[0] += 1
    assert watched.alive


def test_an_idle_engine_is_never_stuck() -> None:
    clock, resident = FakeClock(), [0]
    watched = progress(clock, [5], resident)
    clock.advance(1000)
    assert watched.alive

    resident[0] = 1
    assert watched.alive  # the time before the work came does not count


async def claimed(bench: IntakeBench) -> None:
    """One request, claimed and with a first token out."""
    await bench.submit(make_record(max_new_tokens=100))
    async with bench.running():
        await bench.pushed(1)


@pytest.mark.rule("lease.wedged-engine-loses")
async def test_a_stuck_engine_does_not_renew() -> None:
    clock = FakeClock()
    broker = MemoryBroker(clock=clock)
    bench = IntakeBench(broker, clock=clock, lease_ms=5000, stall_s=2.0)
    await claimed(bench)
    keeper = bench.intake.keeper
    expiry = broker.requests["r1"].expires_ms

    bench.step()
    clock.advance(1)
    await keeper.renew({"r1": 1})
    assert broker.requests["r1"].expires_ms > expiry
    expiry = broker.requests["r1"].expires_ms

    clock.advance(3)
    await keeper.renew({"r1": 1})
    assert broker.requests["r1"].expires_ms == expiry

    bench.step()
    await keeper.renew({"r1": 1})
    assert broker.requests["r1"].expires_ms > expiry


async def test_what_is_being_finished_is_not_lost_by_a_renewal_that_crosses_it() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    await bench.submit(make_record(max_new_tokens=1))
    async with bench.running():
        await bench.pushed(1)
        bench.step()
        await bench.wire.release("m", "engine-1", {"r1": 1})
        # Its terminal frame is on its way; only the answer to ``finish`` says whose it was.
        await bench.intake.keeper.renew({"r1": 1})

    assert bench.value("headrace_engine_requests_let_go_total", why="lost") <= 1
    assert bench.value("headrace_engine_requests_finished_total", reason="length") == 0


async def test_a_renewal_that_crosses_a_new_claim_loses_nothing_of_it() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    await bench.submit(make_record(max_new_tokens=100))
    async with bench.running():
        await bench.pushed(1)
        # It names an attempt before the one that is held: lost is only that.
        await bench.intake.keeper.renew({"r1": 0})
        await asyncio.sleep(0)

        assert bench.value("headrace_engine_requests_let_go_total", why="lost") == 0
        assert bench.intake.state().held == 1


async def test_the_process_says_what_it_is_and_how_loaded() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker)
    await bench.intake.keeper.ready()

    info, _ = broker.engines["engine-1"]
    assert (info.model, info.state, info.running) == ("m", "ready", 0)


async def test_a_beat_that_finds_no_server_does_not_stop_the_start() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker)
    broker.up = False

    await bench.intake.keeper.ready()

    assert bench.intake.keeper.state == "ready"
