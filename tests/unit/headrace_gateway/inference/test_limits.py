"""A key's minute: what is reserved, what is settled, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.errors import InvalidRequest, QueueFull, RateLimitExceeded
from headrace_gateway.inference.calls import Bucket, SamplingCall
from headrace_transport.interface import Allowance, Rates
from headrace_transport.memory import MemoryGatewayWire
from support.clock import FakeClock
from support.waiting import eventually
from support.wire import CALLER, Stack, call, read

LIMITED = replace(CALLER, requests_per_minute=2, tokens_per_minute=100)
RATES = Rates(2, 100)


async def left(stack: Stack) -> Allowance:
    """What the key has now."""
    wire = MemoryGatewayWire(stack.broker)
    return await wire.take_rate(
        CALLER.tenant, CALLER.key_id, RATES, requests=0, tokens=0, must=False
    )


def asks(**more: object) -> SamplingCall:
    """Ten tokens at most, unless it says otherwise."""
    return replace(SamplingCall(max_tokens=10), **more)  # type: ignore[arg-type]


async def test_a_call_takes_its_prompt_and_all_that_it_may_generate() -> None:
    stack = Stack(FakeClock())
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        sampling = asks(n=2)
        running = await service.start(call("hello", sampling=sampling, caller=LIMITED))
        assert running.rates is not None
        assert running.rates.requests == Bucket(2, 1, 30.0)
        assert running.rates.tokens == Bucket(100, 100 - 5 - 20, 15.0)
        await running.aclose()


async def test_what_was_not_used_is_given_back_at_the_end() -> None:
    stack = Stack(FakeClock())
    async with stack.claimed(stack.gateway(), call("hello", sampling=asks(), caller=LIMITED)) as (
        _,
        running,
        claimed,
    ):
        await stack.engine.say(claimed, "abc", finish=FinishReason.STOP)
        await read(running)
        await running.aclose()

        async def settled() -> bool:
            return (await left(stack)).tokens_left == 100 - 5 - 3

        await eventually(settled)
        assert (await left(stack)).requests_left == 1


async def test_beyond_the_limit_a_call_is_refused_with_the_time_to_come_back() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        for number in range(2):
            await service.start(call("x", request_id=f"r{number}", sampling=asks(), caller=LIMITED))
        with pytest.raises(RateLimitExceeded, match="2 requests a minute") as refused:
            await service.start(call("x", request_id="r2", sampling=asks(), caller=LIMITED))
        assert refused.value.retry_after_s == 30
        assert refused.value.rates is not None
        assert refused.value.rates.requests == Bucket(2, 0, 60.0)
        clock.advance(30)
        await service.start(call("x", request_id="r3", sampling=asks(), caller=LIMITED))
        with pytest.raises(RateLimitExceeded):
            await service.start(call("x", request_id="r4", sampling=asks(), caller=LIMITED))


async def test_tokens_alone_can_be_the_limit_and_the_message_has_the_numbers() -> None:
    stack = Stack(FakeClock())
    caller = replace(LIMITED, requests_per_minute=None)
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        big = asks(max_tokens=120)  # more than a minute's: it takes all of it
        await service.start(call("x", request_id="r1", sampling=big, caller=caller))
        with pytest.raises(RateLimitExceeded, match="100 tokens a minute; 0 are left") as refused:
            await service.start(call("x", request_id="r2", sampling=asks(), caller=caller))
        assert refused.value.retry_after_s == 7  # eleven tokens of a hundred a minute


async def test_a_call_that_is_refused_otherwise_takes_nothing() -> None:
    stack = Stack(FakeClock())
    async with stack.gateway(max_queued=1).running() as service:
        await stack.engine.appear()
        await service.start(call("x", request_id="r0"))
        bad = asks(temperature=99)
        with pytest.raises(InvalidRequest):
            await service.start(call("x", request_id="r1", sampling=bad, caller=LIMITED))
        with pytest.raises(QueueFull):
            await service.start(call("x", request_id="r2", sampling=asks(), caller=LIMITED))

        async def whole() -> bool:
            now = await left(stack)
            return (now.requests_left, now.tokens_left) == (2, 100)

        await eventually(whole)


async def test_a_key_without_limits_is_not_asked_about() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x"))
        assert running.rates is None
        await running.aclose()
    assert stack.broker.rates == {}
