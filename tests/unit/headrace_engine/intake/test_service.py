"""Intake as a whole, on the memory wire, with an engine that the test steps."""

from __future__ import annotations

import asyncio

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, Control, Drain
from headrace_engine.state.metrics import WaitingChoice
from headrace_engine.state.request import RequestHandle
from headrace_transport.interface import Wait
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


async def finished(bench: IntakeBench, request: str = "r1") -> FinishReason | None:
    """Waits for the end of a request; why it ended."""

    async def over() -> bool:
        state = await bench.gateway.request_state(request)
        return state is not None and state.status == "finished"

    await eventually(over)
    state = await bench.gateway.request_state(request)
    return None if state is None else state.finish


async def test_a_request_is_claimed_run_streamed_and_settled() -> None:
    bench = IntakeBench(MemoryBroker())
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=3, slot=7))
        await bench.pushed(1)
        bench.step(3)
        assert await finished(bench) is FinishReason.LENGTH

        out = await bench.out()
        assert out.tokens == {7: [token_of(1, 0, index) for index in range(3)]}
        assert out.finishes == {7: FinishReason.LENGTH}
        state = await bench.gateway.request_state("r1")
        assert state is not None
        assert state.usage is not None
        assert (state.usage.prompt_tokens, state.usage.completion_tokens) == (3, 3)
        log = [entry for _, entry in await bench.gateway.read_log("r1")]
        assert [token for entry in log for token in entry.tokens] == out.tokens[7]
        assert log[-1].finishes[0].reason == FinishReason.LENGTH
        assert bench.intake.state().held == 0


async def test_several_choices_settle_as_one_request() -> None:
    bench = IntakeBench(MemoryBroker())
    async with bench.running():
        await bench.submit(make_record(n=3, max_new_tokens=2, slot=20))
        await bench.pushed(1)
        bench.step(2)
        assert await finished(bench) is FinishReason.LENGTH

        out = await bench.out()
        assert out.tokens == {
            20 + choice: [token_of(1, choice, index) for index in range(2)] for choice in range(3)
        }
        assert set(out.finishes) == {20, 21, 22}
        assert bench.value("headrace_engine_requests_finished_total", reason="length") == 1


async def test_what_the_engine_cannot_run_is_refused_with_its_code_and_settled() -> None:
    bench = IntakeBench(MemoryBroker(), context_tokens=8)
    async with bench.running():
        await bench.submit(make_record(n=2, max_new_tokens=100, slot=4))
        assert await finished(bench) is FinishReason.ERROR

        out = await bench.out()
        assert out.finishes == {4: FinishReason.ERROR, 5: FinishReason.ERROR}
        assert out.codes[4] == Code.CONTEXT_LENGTH_EXCEEDED
        assert "103" in out.messages[4]
        assert bench.fake.pushed == []
        assert (
            bench.value("headrace_engine_requests_refused_total", code="context_length_exceeded")
            == 1
        )


async def test_no_more_is_claimed_than_can_be_held() -> None:
    bench = IntakeBench(MemoryBroker(), slots=2, max_waiting=1)
    async with bench.running():
        for number in range(5):
            await bench.submit(make_record(f"r{number}", max_new_tokens=1))
        await bench.pushed(3)
        await asyncio.sleep(0.05)
        assert len(bench.fake.pushed) == 3
        assert await bench.gateway.queue_depth("m") == 2

        bench.step()
        await bench.pushed(5)


async def test_a_cancel_reaches_the_engine_by_the_nudge() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record())
        await bench.pushed(1)
        bench.step()
        await bench.gateway.cancel("m", "r1", CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED))
        await eventually(lambda: bool(bench.fake.cancels))
        bench.step()
        assert await finished(bench) is FinishReason.CANCELLED


async def test_a_stop_string_ends_its_choice_alone() -> None:
    bench = IntakeBench(MemoryBroker())
    async with bench.running():
        await bench.submit(make_record(n=2, max_new_tokens=4, slot=1))
        await bench.pushed(1)
        bench.step(2)
        await bench.gateway.cancel(
            "m", "r1", CancelMark(reason=codes_pb2.FINISH_REASON_STOP, choice=1)
        )
        await eventually(lambda: bool(bench.fake.cancels))
        bench.step(2)
        assert await finished(bench) is FinishReason.LENGTH

        out = await bench.out()
        assert out.finishes == {1: FinishReason.LENGTH, 2: FinishReason.STOP}
        assert len(out.tokens[1]) == 4


async def test_tokens_that_nobody_could_read_yet_wait_and_leave_together() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=50, slot=3))
        await bench.pushed(1)
        bench.step(2)
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        broker.up = False
        for _ in range(30):
            bench.step()
            await asyncio.sleep(0)
        assert bench.intake.problems
        broker.up = True
        bench.step(18)
        assert await finished(bench) is FinishReason.LENGTH

        out = await bench.out()
        assert out.tokens[3] == [token_of(1, 0, index) for index in range(50)]
        assert len(out.frames) < 20
        assert bench.intake.problems == []


@pytest.mark.rule("frames.bounded")
async def test_a_buffer_that_is_full_lets_the_largest_request_go_and_keeps_the_others() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, buffer_tokens=100, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("large", max_new_tokens=500, n=1, slot=1))
        await bench.pushed(1)
        broker.up = False
        bench.step(60)
        broker.up = True
        await bench.submit(make_record("small", max_new_tokens=80, slot=2))
        await bench.pushed(2)
        broker.up = False
        bench.step(60)
        state = bench.intake.state()
        assert (state.held, state.unpublished_tokens) == (1, 60)
        broker.up = True
        bench.step(40)
        assert await finished(bench, "small") is FinishReason.LENGTH
        assert bench.value("headrace_engine_requests_let_go_total", why="gave_up") == 1


async def test_a_lost_lease_ends_the_work_without_a_word() -> None:
    broker = MemoryBroker(clock=FakeClock())
    bench = IntakeBench(broker, lease_ms=300)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=500))
        await bench.pushed(1)
        bench.step(2)
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        await bench.wire.release("m", "engine-1", {"r1": 1})
        await eventually(lambda: bool(bench.fake.cancels))
        frames = len((await bench.out()).frames)
        bench.intake.take([bench.fake.step()])
        await eventually(
            lambda: bench.value("headrace_engine_requests_let_go_total", why="lost") == 1
        )
        assert (await bench.out()).finishes == {}
        assert frames <= 2


@pytest.mark.rule("intake.outage-is-survived")
async def test_a_server_that_comes_back_empty_is_told_the_card_again_and_holds_nothing_up() -> None:
    broker = MemoryBroker(clock=FakeClock())
    bench = IntakeBench(broker, lease_ms=300)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=500))
        await bench.pushed(1)
        bench.step(1)
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        cards = bench.cards
        broker.flush()
        await eventually(lambda: bench.intake.state().held == 0)
        await eventually(lambda: bench.cards > cards)
        bench.step()
        await bench.submit(make_record("r2", max_new_tokens=1))
        await bench.pushed(2)
        bench.step()
        assert await finished(bench, "r2") is FinishReason.LENGTH


async def test_a_successor_continues_at_the_next_token_and_the_stale_engine_changes_nothing() -> (
    None
):
    broker = MemoryBroker()
    first = IntakeBench(broker, engine="first", lease_ms=400, stall_s=0.05)
    second = IntakeBench(broker, engine="second", lease_ms=1200)
    async with first.running():
        await first.submit(make_record(max_new_tokens=40, slot=9))
        await first.pushed(1)
        first.step(20)
        await eventually(lambda: first.intake.state().unpublished_tokens == 0)
        # The first engine stands still from here on, so its lease lapses.
        async with second.running():
            await second.pushed(1)
            assert second.fake.pushed[0].attempt == 2
            assert len(second.fake.pushed[0].generated[0]) == 20
            first.step(5)  # it wakes up, and decides what nobody may see
            second.step(20)
            assert await finished(second) is FinishReason.LENGTH
            stale = token_of(1, 0, 20)

            out = await second.out()
            assert out.tokens[9][19:21] == [token_of(1, 0, 19), token_of(2, 0, 20)]
            mine = [frame for frame in out.frames if frame.engine == "second"]
            assert [token for frame in mine for token in frame.tokens] == [
                token_of(2, 0, index) for index in range(20, 40)
            ]
            logged = [
                token for _, entry in await second.gateway.read_log("r1") for token in entry.tokens
            ]
            assert stale not in logged
            assert logged == [token_of(1, 0, index) for index in range(20)] + [
                token_of(2, 0, index) for index in range(20, 40)
            ]


async def test_what_a_failing_engine_ended_is_left_to_a_successor() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record())
        await bench.pushed(1)
        bench.step()
        bench.intake.take([bench.fake.fail()])
        await eventually(lambda: bench.intake.state().held == 0)

        state = await bench.gateway.request_state("r1")
        assert state is not None
        assert state.status == "running"
        assert (await bench.out()).finishes == {}


async def test_a_second_gateway_gets_the_rest_of_a_running_request() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=30, slot=9))
        await bench.pushed(1)
        bench.step(20)
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        await bench.gateway.attach("r1", "other", 70, 0)
        await eventually(lambda: len(bench.broker.out("other")) > 0)
        bench.step(10)
        assert await finished(bench) is FinishReason.LENGTH

        log = [token for _, entry in await bench.gateway.read_log("r1") for token in entry.tokens]
        other = await bench.frames("other")
        firsts = [frame.firsts[0] for frame in other]
        sent = [token for frame in other for token in frame.tokens]
        assert log[: firsts[0]] + sent == [token_of(1, 0, index) for index in range(30)]
        assert other[-1].finishes[0].reason == FinishReason.LENGTH
        assert set(other[-1].slots) == {70}


@pytest.mark.parametrize("grace_ms", [0, 2500])
async def test_an_operator_can_ask_for_a_drain(grace_ms: int) -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker)
    async with bench.running():
        broker.control("engine-1").append(
            Control(version=WIRE_VERSION, drain=Drain(grace_ms=grace_ms))
        )
        await eventually(lambda: bool(bench.drains))
    assert bench.drains == [2.5 if grace_ms else None]


async def test_a_drain_finishes_what_runs_and_hands_the_rest_back() -> None:
    broker = MemoryBroker()
    bench = IntakeBench(broker, lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("short", max_new_tokens=3, slot=1))
        await bench.submit(make_record("long", max_new_tokens=500, slot=2))
        await bench.pushed(2)
        bench.step()
        await bench.submit(make_record("waits", slot=3))
        await bench.pushed(3)  # pushed, and no pass has touched it
        draining = asyncio.ensure_future(bench.intake.drain(0.2))
        await asyncio.sleep(0.05)
        bench.step(2)
        await bench.submit(make_record("late", slot=4))
        await draining

        assert await finished(bench, "short") is FinishReason.LENGTH
        for request in ("long", "waits", "late"):
            state = await bench.gateway.request_state(request)
            assert state is not None
            assert state.status == "queued"
        assert bench.intake.state().held == 0
        assert bench.intake.problems == ["draining"]

    successor = IntakeBench(broker, engine="engine-2")
    async with successor.running():
        await successor.pushed(3)
        by_id = {request.id: request for request in successor.fake.pushed}
        assert len(by_id["long"].generated[0]) == 3
        assert [len(tokens) for tokens in by_id["waits"].generated] in ([], [0])


async def test_every_claimed_request_is_finished_let_go_or_held() -> None:
    # leases never lapse, as the server's time stands; they are renewed often
    bench = IntakeBench(MemoryBroker(clock=FakeClock()), slots=16, lease_ms=300)
    async with bench.running():
        for number in range(12):
            await bench.submit(make_record(f"r{number}", max_new_tokens=2 + number, slot=number))
        await bench.pushed(12)
        bench.step()
        for number in (1, 2, 3):
            await bench.gateway.cancel(
                "m", f"r{number}", CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED)
            )
        await eventually(lambda: len(bench.fake.cancels) >= 3)
        bench.step(6)
        await bench.wire.release("m", "engine-1", {"r11": 1})
        await eventually(
            lambda: bench.value("headrace_engine_requests_let_go_total", why="lost") == 1
        )

        def identity() -> bool:
            done = sum(
                bench.value("headrace_engine_requests_finished_total", reason=reason)
                for reason in ("stop", "length", "cancelled", "deadline", "error")
            )
            let_go = sum(
                bench.value("headrace_engine_requests_let_go_total", why=why)
                for why in ("lost", "released", "failed", "gave_up")
            )
            held = bench.value("headrace_engine_requests_held")
            return bench.value("headrace_engine_requests_claimed_total") == done + let_go + held

        assert identity()
        bench.step(20)
        await eventually(lambda: bench.intake.state().held == 0)
        assert identity()
        assert bench.value("headrace_engine_requests_finished_total", reason="cancelled") == 3


async def test_the_beat_tells_why_requests_wait_inside() -> None:
    bench = IntakeBench(MemoryBroker(clock=FakeClock()), lease_ms=300)
    async with bench.running():
        await bench.submit(make_record("r1", n=2))
        await bench.pushed(1)
        handle = bench.fake.pushed[0].handle
        bench.fake.waits = [
            WaitingChoice(handle, "blocks", 4),
            WaitingChoice(handle, "priority", 0),
            WaitingChoice(RequestHandle(99), "priority", 0),
        ]

        async def says() -> object:
            return (await bench.gateway.standing("m", "r1")).wait

        await eventually(says)
        [told] = await bench.gateway.engines("m")
    assert told.waits == {"r1": Wait("blocks", 4)}
