"""Draining: nothing vanishes, and it ends in time."""

from __future__ import annotations

import asyncio

import pytest
from headrace_engine.intake.publisher import SPARED_ATTEMPTS
from headrace_transport.memory_broker import MemoryBroker
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


async def status(bench: IntakeBench, request: str) -> str:
    """Where a request stands."""
    state = await bench.gateway.request_state(request)
    assert state is not None
    return state.status


async def test_an_idle_engine_drains_at_once() -> None:
    bench = IntakeBench(MemoryBroker())
    async with bench.running():
        async with asyncio.timeout(60):
            await bench.intake.drain(3600)

    assert bench.broker.engines["engine-1"][0].state == "draining"


@pytest.mark.rule("drain.nothing-vanishes")
async def test_what_was_published_is_logged_before_it_is_handed_back() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100))
        await bench.pushed(1)
        bench.step(7)
        await bench.intake.drain(0.0)

        assert await status(bench, "r1") == "queued"
        entries = [entry for _, entry in await bench.gateway.read_log("r1")]
        assert [token for entry in entries for token in entry.tokens] == [
            token_of(1, 0, index) for index in range(7)
        ]
    assert bench.value("headrace_engine_requests_let_go_total", why="released") == 1


async def test_without_a_server_it_still_ends_and_leaves_the_leases_to_lapse() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100))
        await bench.pushed(1)
        bench.step()
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        bench.broker.up = False
        async with asyncio.timeout(60):
            await bench.intake.drain(0.1)
        bench.broker.up = True

        assert bench.intake.state().held == 0
        assert await status(bench, "r1") == "running"


async def test_only_what_no_pass_has_touched_is_handed_back_when_the_engine_failed() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("ran"))
        await bench.pushed(1)
        bench.step()
        await bench.submit(make_record("waits"))
        await bench.pushed(2)
        bench.intake.take([bench.fake.fail()])
        await bench.intake.abandon(told=True)

        assert await status(bench, "ran") == "running"
        assert await status(bench, "waits") == "queued"
        assert bench.intake.state().held == 0


@pytest.mark.rule("drain.failed-without-blame")
async def test_what_an_engine_that_failed_spared_goes_on_elsewhere_without_a_crash() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        for name in ("poison", "beside"):
            await bench.submit(make_record(name, max_new_tokens=100))
        await bench.pushed(2)
        bench.step(7)
        bench.intake.take([bench.fake.fail(spared={"beside"})])
        await bench.intake.abandon(told=True)

        assert await status(bench, "poison") == "running"
        assert await status(bench, "beside") == "queued"
        entries = [entry for _, entry in await bench.gateway.read_log("beside")]
        assert sum(len(entry.tokens) for entry in entries) == 7, "they need not be decided again"
        (claimed,) = await bench.wire.claim("m", "engine-2", credit=8, lease_ms=60_000)
        assert (claimed.record.id, claimed.crashes) == ("beside", 0)
        assert [len(tokens) for tokens in claimed.delivered] == [7]


@pytest.mark.rule("drain.failed-without-blame")
async def test_who_was_spared_often_is_to_blame_like_the_others() -> None:
    broker = MemoryBroker()
    for attempt in range(1, SPARED_ATTEMPTS + 2):
        bench = IntakeBench(broker, engine=f"engine-{attempt}", lease_ms=60_000)
        async with bench.running():
            if attempt == 1:
                await bench.submit(make_record(max_new_tokens=100))
            await bench.pushed(1)
            bench.step()
            bench.intake.take([bench.fake.fail(spared={"r1"})])
            await bench.intake.abandon(told=True)
            left = "queued" if attempt <= SPARED_ATTEMPTS else "running"
            assert await status(bench, "r1") == left


@pytest.mark.rule("drain.failed-without-blame")
async def test_a_request_is_to_blame_if_one_of_its_choices_is() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100, n=2))
        await bench.pushed(1)
        bench.step()
        failed = bench.fake.fail(spared={"r1"})
        failed.ends[0] = failed.ends[0]._replace(spared=False)
        bench.intake.take([failed])
        await bench.intake.abandon(told=True)
        assert await status(bench, "r1") == "running"


@pytest.mark.rule("threads.two-processes")
async def test_what_an_engine_had_that_died_without_a_word_is_not_handed_back() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("given"))  # it may have been what killed it
        await bench.pushed(1)
        bench.fake.draining = True
        await bench.submit(make_record("late"))
        await eventually(lambda: bench.intake.state().held == 2)
        await bench.intake.abandon(told=False)

        assert await status(bench, "given") == "running"
        assert await status(bench, "late") == "queued"
        assert bench.intake.state().held == 0
    assert bench.value("headrace_engine_requests_let_go_total", why="failed") == 1


@pytest.mark.parametrize("told", [True, False])
async def test_what_had_ended_before_the_engine_failed_is_settled(told: bool) -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("ended", max_new_tokens=1))
        await bench.pushed(1)
        bench.step()  # its end is not published yet
        await bench.intake.abandon(told=told)

        assert await status(bench, "ended") == "finished"
        assert bench.intake.state().held == 0
    assert bench.value("headrace_engine_requests_let_go_total", why="failed") == 0
