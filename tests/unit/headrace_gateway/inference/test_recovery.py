"""Lost frames, stale attempts, lost servers, lost engines: the stream goes on, or says so."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import LogEntry, RowFinish, RowLogprobs
from headrace_gateway.errors import BackendUnavailable, EngineFailed, Internal, NoEngine
from headrace_gateway.inference.calls import Delta, SamplingCall
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import EngineInfo, RequestState
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock, passing
from support.waiting import eventually
from support.wire import Gateway, Stack, call, finishes, read, texts, toy_ids

LENGTH = FinishReason.LENGTH


async def test_rows_of_a_fenced_attempt_are_dropped_and_the_successor_goes_on() -> None:
    stack = Stack()
    gateway = stack.gateway()
    late, successor = stack.engine, stack.another_engine("engine-b")
    async with gateway.running() as service:
        await late.appear()
        running = await service.start(call("x"))
        [stale] = await late.claim(lease_ms=1)
        await late.say(stale, "ab")
        await asyncio.sleep(0.01)
        [taken] = await successor.claim()
        assert taken.attempt == stale.attempt + 1
        assert [list(tokens) for tokens in taken.delivered] == [toy_ids("ab")]
        await late.say(stale, "XXX")  # it woke up after its lease was taken
        await successor.say(taken, "cd", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "abcd"}
    assert gateway.value("headrace_gateway_stale_rows_total", kind="fenced") == 1


async def test_rows_that_come_twice_count_once() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(claimed, "abc")
        await stack.engine.say(claimed, "abc", first=0, log=False)
        await stack.engine.say(claimed, "bcde", first=1, log=False)  # overlaps
        await stack.engine.say(claimed, "", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "abcde"}
    assert gateway.value("headrace_gateway_stale_rows_total", kind="duplicate") == 1


async def test_a_lost_frame_is_made_good_from_the_log() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(claimed, "a")
        await stack.engine.say(claimed, "bc", publish=False)
        await stack.engine.say(claimed, "d")
        assert texts(await read(running, until=1)) == {0: "a"}
        await eventually(lambda: recovered(gateway, "gap"))
        await stack.engine.say(claimed, "e", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "bcde"}


async def test_a_lost_frame_that_is_not_logged_yet_is_sent_again_by_the_engine() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (_, running, claimed):
        await stack.engine.say(claimed, "a")
        await stack.engine.say(claimed, "bc", publish=False, log=False)
        await stack.engine.say(claimed, "d", log=False)
        attach = await stack.engine.obey_attach(claimed, by="gateway-a")
        assert attach.first == 1
        await stack.engine.say(claimed, "e", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "abcde"}


async def test_an_end_whose_frame_got_lost_is_found_in_the_log() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (_, running, claimed):
        await stack.engine.say(claimed, "a")
        await stack.engine.say(claimed, "b", publish=False, log=False)
        assert await stack.engine.end(claimed, {0: LENGTH}, since=[1])
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "ab"}
    assert finishes(events) == {0: LENGTH}


async def test_what_the_server_lost_is_submitted_again_with_what_was_delivered() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(
        gateway, call("x", sampling=SamplingCall(n=2, max_tokens=9, seed=7))
    ) as (_, running, claimed):
        await stack.engine.say(claimed, "ab", choice=0)
        await stack.engine.say(claimed, "xyz", choice=1, finish=LENGTH)
        await read(running, until=2)
        stack.broker.flush()
        await stack.engine.appear()
        [again] = await stack.engine.claim()
        assert again.attempt > claimed.attempt
        assert list(again.delivered[0]) == toy_ids("ab")
        assert set(again.ended) == {1}
        assert again.record.sampling.seed == 7
        await stack.engine.say(again, "cd", choice=0, finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "cd"}
    assert finishes(events) == {0: LENGTH}
    assert gateway.value("headrace_gateway_recoveries_total", kind="resubmitted") == 1


async def test_an_engine_from_before_the_loss_is_not_believed_any_more() -> None:
    stack = Stack()
    gateway = stack.gateway()
    old, new = stack.engine, stack.another_engine("engine-b")
    async with gateway.running() as service:
        await old.appear()
        running = await service.start(call("x"))
        [claimed] = await old.claim()
        await old.say(claimed, "ab")
        await read(running, until=1)
        stack.broker.flush()
        await new.appear()
        [again] = await new.claim()
        assert [list(tokens) for tokens in again.delivered] == [toy_ids("ab")]
        await old.say(claimed, "XY", log=False)  # it does not know yet that its lease is gone
        await new.say(again, "cd", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "cd"}
    assert gateway.value("headrace_gateway_stale_rows_total", kind="fenced") == 1


async def test_a_queued_request_survives_the_loss_of_the_server() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x"))
        stack.broker.flush()
        await stack.engine.appear()
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "late", finish=LENGTH)
        assert texts(await read(running)) == {0: "late"}
        await running.aclose()


async def test_an_engine_without_successor_ends_the_stream_with_an_error() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    gateway = stack.gateway(lost_engine_s=0.3)
    async with gateway.running() as service:
        await stack.engine.appear(ttl_ms=200)
        running = await service.start(call("x"))
        [claimed] = await stack.engine.claim(lease_ms=200)
        await stack.engine.say(claimed, "a")
        async with passing(clock):
            with pytest.raises(EngineFailed):
                await read(running)
        await running.aclose()
    assert gateway.value("headrace_gateway_recoveries_total", kind="failed") == 1
    assert gateway.value("headrace_gateway_requests_finished_total", reason="error") == 1


async def test_a_queued_request_without_any_engine_ends_with_an_error() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    async with stack.gateway(lost_engine_s=0.2).running() as service:
        await stack.engine.appear(ttl_ms=100)
        running = await service.start(call("x"))
        async with passing(clock):
            with pytest.raises(NoEngine) as caught:
                await read(running)
        await running.aclose()
        assert caught.value.retry_after_s
        await eventually(stack.queue_is_empty)


async def test_a_server_that_is_away_refuses_new_calls_and_keeps_the_running_ones() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (service, running, claimed):
        stack.broker.up = False
        with pytest.raises(BackendUnavailable) as caught:
            await service.start(call("y", request_id="cmpl-2"))
        assert caught.value.retry_after_s
        assert not (await gateway.readiness.report()).ready
        await asyncio.sleep(0.3)
        stack.broker.up = True
        await stack.engine.say(claimed, "on", finish=LENGTH)
        assert texts(await read(running)) == {0: "on"}
        await running.aclose()
        assert (await gateway.readiness.report()).ready


async def test_a_cancel_that_could_not_be_sent_is_sent_when_the_server_is_back() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (_, running, claimed):
        stack.broker.up = False
        await running.aclose()
        await asyncio.sleep(0.05)
        stack.broker.up = True
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED


async def test_logprobs_of_the_log_are_as_good_as_those_of_frames() -> None:
    stack = Stack()
    async with stack.claimed(
        stack.gateway(), call("x", sampling=SamplingCall(max_tokens=4, logprobs=1))
    ) as (_, running, claimed):
        a, b = toy_ids("ab")
        columns = RowLogprobs(width=1, chosen=[-0.5, -1.5], top_ids=[a, a], top_values=[-0.5, -1.0])
        await stack.engine.say(claimed, [a, b], logprobs=columns, finish=LENGTH)
        events = await read(running)
        await running.aclose()
    [delta] = [event for event in events if isinstance(event, Delta)]
    assert [info.logprob for info in delta.tokens] == [-0.5, -1.5]
    assert [info.text for info in delta.tokens] == ["a", "b"]
    assert [(top.text, top.logprob) for top in delta.tokens[1].top] == [("a", -1.0)]


async def test_the_stream_of_an_engine_of_another_version_ends_with_an_error() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (_, running, claimed):
        future = LogEntry(version=99, attempt=1, choices=[0], firsts=[0], counts=[1], tokens=[5])
        await stack.engine.wire.append_log(stack.engine.name, claimed.record.id, 1, future)
        with pytest.raises(Internal, match="has wire version 99, and 1 is read here"):
            await read(running)
        await running.aclose()
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
    assert gateway.value("headrace_gateway_foreign_records_total", kind="log") == 1


async def test_a_dead_letter_ends_its_stream_with_its_code() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x"))
        for turn in range(10):
            engine = stack.another_engine(f"engine-{turn}")
            found = await engine.wire.claim("toy", engine.name, credit=1, lease_ms=1)
            if not found:
                break
            await asyncio.sleep(0.01)
        events = await read(running)
        await running.aclose()
    [delta] = [event for event in events if isinstance(event, Delta)]
    assert (delta.finish, delta.code) == (FinishReason.ERROR, Code.POISONED)


async def recovered(gateway: Gateway, kind: str) -> bool:
    """Whether the counter of recoveries has moved."""
    return gateway.value("headrace_gateway_recoveries_total", kind=kind) >= 1


class UnreadableEngines(MemoryGatewayWire):
    """Somebody damaged what lists the engines."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.unreadable = False
        self.asked = 0

    async def engines(self, model: str) -> Sequence[EngineInfo]:
        if self.unreadable:
            self.asked += 1
            raise CommandFailed("WRONGTYPE")
        return await super().engines(model)


async def test_engines_that_cannot_be_read_end_no_request_that_waits() -> None:
    stack = Stack()
    wire = UnreadableEngines(stack.broker)
    async with Gateway(wire, silence_check_s=0.1).running() as service:
        await stack.engine.appear()
        running = await service.start(call("x"))
        wire.unreadable = True

        async def asked() -> bool:
            return wire.asked >= 4

        await eventually(asked)
        wire.unreadable = False
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab", finish=LENGTH)
        assert texts(await read(running)) == {0: "ab"}
        await running.aclose()
        assert not await stack.engine.marks(claimed)


async def test_a_gateway_whose_clock_is_wrong_ends_no_stream_that_is_silent() -> None:
    stack = Stack()
    clock = FakeClock(wall_ms=stack.clock.wall_ms())
    clock.jump(10_000_000)
    gateway = Gateway(MemoryGatewayWire(stack.broker), clock=clock, lost_engine_s=0.3)
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(claimed, "a")
        await read(running, until=1)
        async with passing(clock):
            for _ in range(2):  # it was asked about, and judged
                await stack.engine.obey_attach(claimed, by=claimed.record.gateway)
        await stack.engine.say(claimed, "b", finish=LENGTH)
        assert texts(await read(running)) == {0: "b"}
        await running.aclose()


@pytest.mark.parametrize("damaged", ["columns", "reason"])
async def test_a_log_that_makes_no_sense_ends_its_stream_with_an_error(damaged: str) -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (_, running, claimed):
        entry = LogEntry(version=WIRE_VERSION, attempt=1, choices=[0], firsts=[0], counts=[0])
        if damaged == "columns":
            entry.counts.append(1)
        else:
            entry.finishes.append(RowFinish.FromString(b"\x10\x4d"))
        stack.broker.requests[claimed.record.id].log.append(entry)
        with pytest.raises(Internal):
            await read(running)
        await running.aclose()


class ForgetsOnce(MemoryGatewayWire):
    """Once, the server says that it does not know a request, as a replica that lags behind does."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.forgets = 0

    async def request_state(self, request: str) -> RequestState | None:
        if self.forgets:
            self.forgets -= 1
            return None
        return await super().request_state(request)


async def test_a_request_that_was_only_said_to_be_lost_goes_on_where_it_runs() -> None:
    stack = Stack()
    wire = ForgetsOnce(stack.broker)
    gateway = Gateway(wire, silence_check_s=0.1)
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(claimed, "ab")
        await read(running, until=1)
        wire.forgets = 1
        await eventually(lambda: recovered(gateway, "resubmitted"))
        await stack.engine.say(claimed, "cd", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert (texts(events), finishes(events)) == ({0: "cd"}, {0: LENGTH})
    assert gateway.value("headrace_gateway_stale_rows_total", kind="fenced") == 0
