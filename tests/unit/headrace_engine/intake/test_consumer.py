"""The consumer: what it claims, and what becomes of it."""

from __future__ import annotations

import asyncio

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, LogEntry, RowFinish, Usage
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


@pytest.mark.rule("intake.credit")
async def test_a_claim_asks_for_no_more_than_the_credit() -> None:
    bench = IntakeBench(MemoryBroker(), slots=3, max_waiting=2, lease_ms=60_000)
    for number in range(9):
        await bench.submit(make_record(f"r{number}"))
    async with bench.running():
        await bench.pushed(5)
        await asyncio.sleep(0.03)

        assert len(bench.fake.pushed) == 5
        assert bench.value("headrace_engine_requests_claimed_total") == 5


async def test_a_taken_over_request_continues_after_what_was_delivered() -> None:
    bench = IntakeBench(MemoryBroker())
    resume = LogEntry(
        version=1, attempt=1, choices=[0, 1], firsts=[0, 0], counts=[2, 1], tokens=[7, 8, 9]
    )
    record = make_record(n=2, slot=4, max_new_tokens=3)
    record.attempt = 1
    await bench.gateway.submit(record, max_queued=10, resume=resume)
    async with bench.running():
        await bench.pushed(1)
        request = bench.fake.pushed[0]
        assert [tokens.tolist() for tokens in request.generated] == [[7, 8], [9]]
        bench.step(2)
        await eventually(lambda: bench.intake.state().held == 0)

    frames = await bench.frames("gw")
    assert frames[0].firsts[:] == [2, 1]
    entries = [entry for _, entry in await bench.gateway.read_log("r1")]
    last = [token for entry in entries[1:] for token in entry.tokens]
    assert sorted(last) == sorted([token_of(2, 0, 2), token_of(2, 1, 1), token_of(2, 1, 2)])


async def test_a_choice_that_had_ended_gets_no_sequence_and_counts_in_the_usage() -> None:
    bench = IntakeBench(MemoryBroker())
    usage = Usage(prompt_tokens=3, completion_tokens=2)
    finish = RowFinish(row=0, reason=codes_pb2.FINISH_REASON_STOP, usage=usage)
    resume = LogEntry(
        version=1,
        attempt=1,
        choices=[0],
        firsts=[0],
        counts=[2],
        tokens=[7, 8],
        finishes=[finish],
    )
    record = make_record(n=2, slot=4, max_new_tokens=3)
    record.attempt = 1
    await bench.gateway.submit(record, max_queued=10, resume=resume)
    async with bench.running():
        await bench.pushed(1)
        assert bench.fake.pushed[0].finished == {0}
        bench.step(3)
        await eventually(lambda: bench.intake.state().held == 0)

    state = await bench.gateway.request_state("r1")
    assert state is not None
    assert state.usage is not None
    assert state.usage.completion_tokens == 5


async def test_a_mark_of_one_choice_that_came_before_the_claim_is_obeyed() -> None:
    bench = IntakeBench(MemoryBroker())
    await bench.submit(make_record(n=2, slot=4, max_new_tokens=3))
    mark = CancelMark(reason=codes_pb2.FINISH_REASON_STOP, choice=1)
    await bench.gateway.cancel("m", "r1", mark)
    async with bench.running():
        await bench.pushed(1)
        bench.step(3)
        await eventually(lambda: bench.intake.state().held == 0)

    out = await bench.out()
    assert out.finishes == {4: FinishReason.LENGTH, 5: FinishReason.STOP}


async def test_a_refusal_after_a_take_over_starts_behind_what_was_delivered() -> None:
    bench = IntakeBench(MemoryBroker(), context_tokens=6)
    resume = LogEntry(version=1, attempt=1, choices=[0], firsts=[0], counts=[2], tokens=[7, 8])
    record = make_record(max_new_tokens=100)
    record.attempt = 1
    await bench.gateway.submit(record, max_queued=10, resume=resume)
    async with bench.running():
        await eventually(lambda: bench.value("headrace_engine_requests_claimed_total") == 1)
        await eventually(lambda: bench.intake.state().held == 0)

    frames = await bench.frames("gw")
    assert frames[-1].firsts[:] == [2]
    assert frames[-1].finishes[0].code == Code.CONTEXT_LENGTH_EXCEEDED
    assert frames[-1].finishes[0].usage.completion_tokens == 2


async def test_an_engine_that_is_stuck_claims_nothing() -> None:
    clock = FakeClock()
    bench = IntakeBench(MemoryBroker(clock=clock), clock=clock, stall_s=5.0, lease_ms=600, slots=4)
    await bench.submit(make_record("r1"))
    async with bench.running():
        await bench.pushed(1)
        assert bench.intake.progress.alive
        clock.advance(6)
        await asyncio.sleep(0.4)  # the bell's time: the next claim would come now
        await bench.submit(make_record("r2"))
        await asyncio.sleep(0.4)
        assert len(bench.fake.pushed) == 1

        bench.step()
        await bench.pushed(2)


async def test_what_the_closed_door_refuses_is_handed_back_by_the_drain() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    bench.fake.draining = True
    await bench.submit(make_record())
    async with bench.running():
        await eventually(lambda: bench.intake.state().held == 1)
        await bench.intake.drain(0.0)

    state = await bench.gateway.request_state("r1")
    assert state is not None
    assert state.status == "queued"
