"""A call that is made again under its idempotency key is the call that was made before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark
from headrace_gateway.errors import BackendUnavailable, Conflict, QueueFull, RequestNotFound
from headrace_gateway.inference.calls import Call
from headrace_gateway.inference.once import GRACE_S, Once, once_key
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.waiting import PATIENCE_S, eventually
from support.wire import Gateway, LateCancel, Stack, call, read, texts

STOP, LENGTH, ERROR = FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR


def again(name: str, *prompts: str, body: bytes = b"body", key: str = "order-1") -> Call:
    """A call with a key; ids differ, as those of two HTTP requests do."""
    return replace(call(*(prompts or ("x",))), request_id=name, once=once_key(key, body))


async def test_a_repeated_call_reads_the_first_ones_answer_here_and_elsewhere() -> None:
    stack = Stack()
    here, there = stack.gateway(), stack.gateway("gateway-b")
    async with here.running() as service, there.running() as other:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        assert texts(await read(first, until=1)) == {0: "ab"}
        running = await service.start(again("cmpl-2"))
        assert running.id == "cmpl-1"
        await stack.engine.say(claimed, "cd", finish=LENGTH)
        assert await stack.engine.end(claimed, {0: LENGTH}, since=[2])
        assert texts(await read(running)) == {0: "abcd"}
        for each in (first, running):
            await each.aclose()
        later = await other.start(again("cmpl-3"))
        assert (later.id, texts(await read(later))) == ("cmpl-1", {0: "abcd"})
        await later.aclose()
        assert here.value("headrace_gateway_requests_started_total") == 1
        assert there.value("headrace_gateway_requests_started_total") == 0


async def test_another_body_or_another_key_is_another_call() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        with pytest.raises(Conflict, match="another body"):
            await service.start(again("cmpl-2", body=b"other"))
        second = await service.start(again("cmpl-3", key="order-2"))
        assert second.id == "cmpl-3"
        for each in (first, second):
            await each.aclose()


async def test_a_call_outlives_its_client_for_a_repetition() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    async with stack.claimed(stack.gateway(), again("cmpl-1")) as (service, first, claimed):
        await first.aclose()
        running = await service.start(again("cmpl-2"))
        await stack.engine.say(claimed, "ab", finish=LENGTH)
        assert texts(await read(running)) == {0: "ab"}
        await running.aclose()

        left = await service.start(again("cmpl-3", key="left"))
        [claimed] = await stack.engine.claim()
        await left.aclose()
        clock.advance(GRACE_S + 1)
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED


async def test_a_call_that_is_repeated_elsewhere_outlives_that_client_too() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    here, there = stack.gateway(), stack.gateway("gateway-b")
    async with here.running() as service, there.running() as other:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        [claimed] = await stack.engine.claim()
        await (await other.start(again("cmpl-2"))).aclose()
        assert there.value("headrace_gateway_cancels_total", cause="disconnect") == 0
        running = await other.start(again("cmpl-3"))
        await stack.engine.obey_attach(claimed)
        await stack.engine.say(claimed, "ab", finish=LENGTH)
        assert texts(await read(running)) == {0: "ab"}
        for each in (first, running):
            await each.aclose()


async def test_it_does_so_where_it_is_read_on_by_its_id_too() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    here, there = stack.gateway(), stack.gateway("gateway-b")
    async with here.running() as service, there.running() as other:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        [claimed] = await stack.engine.claim()
        await (await other.resume("cmpl-1", "", call("x").caller)).aclose()
        await stack.engine.obey_attach(claimed)
        clock.advance(GRACE_S - 1)
        running = await other.resume("cmpl-1", "", call("x").caller)
        await stack.engine.say(claimed, "ab")
        assert texts(await read(running, until=1)) == {0: "ab"}
        await running.aclose()
        assert there.value("headrace_gateway_cancels_total", cause="disconnect") == 0
        clock.advance(GRACE_S + 1)
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
        await first.aclose()


@pytest.mark.parametrize(
    ("ends", "replayed"),
    [
        ((STOP, LENGTH), True),
        ((STOP, ERROR), False),
        ((ERROR, STOP), False),
        ((STOP, FinishReason.CANCELLED), False),
    ],
)
async def test_several_prompts_are_replayed_when_each_was_answered(
    ends: tuple[FinishReason, FinishReason], replayed: bool
) -> None:
    stack = Stack()
    once = Once(MemoryGatewayWire(stack.broker), cancelled=lambda _: False)
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(again("cmpl-1", "x", "y"))
        claimed = await stack.engine.claim(2)
        made = again("cmpl-2", "x", "y")
        assert made.once is not None
        by_id = {each.record.id: each for each in claimed}
        for request, end in zip(("cmpl-1.0", "cmpl-1.1"), ends, strict=True):
            assert await once.hold(made, made.once) == "cmpl-1"  # it has not ended
            assert await stack.engine.end(by_id[request], {0: end})
        assert await once.hold(made, made.once) == ("cmpl-1" if replayed else None)
        await running.aclose()


async def test_what_was_refused_cancelled_or_failed_runs_anew() -> None:
    stack = Stack()
    async with stack.gateway(max_queued=1).running() as service:
        await stack.engine.appear()
        blocking = await service.start(replace(call("y"), request_id="cmpl-y"))
        with pytest.raises(QueueFull):
            await service.start(again("cmpl-1"))
        [blocked] = await stack.engine.claim()
        first = await service.start(again("cmpl-2"))
        assert first.id == "cmpl-2"
        await first.cancel()
        await first.aclose()
        await eventually(stack.queue_is_empty)
        second = await service.start(again("cmpl-3"))
        assert second.id == "cmpl-3"
        await stack.engine.say(blocked, "", finish=LENGTH)
        for each in (blocking, second):
            await each.aclose()


@pytest.mark.parametrize("at", ["here", "elsewhere", "before the server knows"])
async def test_a_call_that_is_cancelled_is_not_joined_while_its_engine_goes_on(at: str) -> None:
    stack = Stack()
    there = stack.gateway("gateway-b")
    wire = LateCancel(stack.broker)
    async with Gateway(wire).running() as service, there.running() as other:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        if at != "before the server knows":
            wire.through.set()
            assert await service.cancel("cmpl-1", call("x").caller)
        else:
            await first.cancel()
            await wire.on_its_way.wait()
        again_at = other if at == "elsewhere" else service
        second = await again_at.start(again("cmpl-2"))
        assert second.id == "cmpl-2"
        # and it is the one that is repeated from now on
        third = await service.start(again("cmpl-3"))
        assert third.id == "cmpl-2"
        wire.through.set()
        await stack.engine.await_mark(claimed)
        [anew] = await stack.engine.claim()
        assert anew.record.id == "cmpl-2"
        for each in (first, second, third):
            await each.aclose()


async def test_a_call_that_a_stop_string_has_ended_is_joined() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        stopped = again("cmpl-1")
        stopped = replace(stopped, sampling=replace(stopped.sampling, stop=("b",)))
        first = await service.start(stopped)
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "abc")
        assert texts(await read(first)) == {0: "a"}
        assert (await stack.engine.await_mark(claimed)).HasField("choice")
        second = await service.start(replace(stopped, request_id="cmpl-2"))
        assert (second.id, texts(await read(second))) == ("cmpl-1", {0: "a"})
        for each in (first, second):
            await each.aclose()


async def test_of_two_at_once_one_is_told_to_come_back() -> None:
    stack = Stack()
    once = Once(MemoryGatewayWire(stack.broker), cancelled=lambda _: False)
    made = again("cmpl-1")
    assert made.once is not None
    assert await once.hold(made, made.once) is None  # and is not queued yet
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with pytest.raises(BackendUnavailable, match="being admitted") as caught:
            await service.start(again("cmpl-2"))
        assert caught.value.retry_after_s == 1
        await once.let_go(made, made.once)
        running = await service.start(again("cmpl-2"))
        await running.aclose()


async def test_an_answer_that_is_no_longer_kept_is_said_to_be_so() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    async with stack.claimed(stack.gateway(), again("cmpl-1")) as (service, running, claimed):
        await stack.engine.say(claimed, "ab")
        await stack.engine.say(claimed, "", finish=LENGTH)
        assert await stack.engine.end(claimed, {0: LENGTH})
        await read(running)
        await running.aclose()
        clock.advance(1800)

        async def forgotten() -> bool:
            try:
                found = await service.resume("cmpl-1", "", call("x").caller)
            except RequestNotFound:
                return True
            await found.aclose()
            return False

        await eventually(forgotten)
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="no longer kept"):
            await service.start(again("cmpl-2"))
        clock.advance(2 * 3600)
        with pytest.raises(RequestNotFound):
            await service.request("cmpl-1", call("x").caller)
        with pytest.raises(Conflict, match="no longer kept"):
            await service.start(again("cmpl-3"))
        clock.advance(24 * 3600)
        await stack.engine.appear()
        anew = await service.start(again("cmpl-4"))
        assert anew.id == "cmpl-4"
        await anew.aclose()


class EndsMeanwhile(MemoryGatewayWire):
    """Something happens to a request between the question for its state and that for its marks."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        if self.meanwhile is not None:
            await self.meanwhile()
        return await super().cancels(model, requests)


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, LENGTH])
async def test_a_call_that_ends_while_its_marks_are_read_is_judged_by_its_end(
    reason: FinishReason,
) -> None:
    stack = Stack()
    wire = EndsMeanwhile(stack.broker)
    there = Gateway(wire, name="gateway-b")
    async with stack.gateway().running() as service, there.running() as other:
        await stack.engine.appear()
        first = await service.start(again("cmpl-1"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        if reason is FinishReason.CANCELLED:
            assert await other.cancel("cmpl-1", call("x").caller)
        # its engine ends it: with that its mark is gone
        wire.meanwhile = lambda: stack.engine.end(claimed, {0: reason})
        second = await other.start(again("cmpl-2"))
        assert second.id == ("cmpl-2" if reason is FinishReason.CANCELLED else "cmpl-1")
        for each in (first, second):
            await each.aclose()


async def test_a_name_whose_value_is_damaged_is_free() -> None:
    stack = Stack()
    wire = MemoryGatewayWire(stack.broker)
    made = again("cmpl-1")
    assert made.once is not None
    await wire.bind_once("acme", "key1", made.once.name, "junk", ttl_ms=60_000)
    assert await Once(wire, cancelled=lambda _: False).hold(made, made.once) is None


class LateBinding(MemoryGatewayWire):
    """From the second on, a binding stays on its way."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self.bound = 0
        self.on_its_way = asyncio.Event()

    async def bind_once(
        self, tenant: str, key_id: str, digest: str, value: str, *, ttl_ms: int, instead: str = ""
    ) -> str:
        self.bound += 1
        if self.bound > 1:
            self.on_its_way.set()
            await asyncio.Event().wait()
        return await super().bind_once(
            tenant, key_id, digest, value, ttl_ms=ttl_ms, instead=instead
        )


async def test_who_goes_while_its_key_is_being_kept_leaves_no_reader() -> None:
    stack = Stack()
    wire = LateBinding(stack.broker)
    gateway = Gateway(wire)
    async with gateway.running() as service:
        await stack.engine.appear()
        starting = asyncio.create_task(service.start(again("cmpl-1")))
        await asyncio.wait_for(wire.on_its_way.wait(), PATIENCE_S)
        starting.cancel()
        await asyncio.wait([starting])
        assert starting.cancelled()
        assert gateway.value("headrace_gateway_streams_open") == 0
