"""Calls on their way into a queue: bounds, refusals, and what was queued before one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_gateway.errors import QueueFull, RateLimitExceeded
from support.waiting import eventually
from support.wire import CALLER, Stack, call


async def test_a_keys_concurrency_is_bounded() -> None:
    stack = Stack()
    one = replace(CALLER, max_concurrency=1)
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x", caller=one))
        with pytest.raises(RateLimitExceeded) as caught:
            await service.start(call("y", caller=one, request_id="cmpl-2"))
        assert caught.value.retry_after_s
        await running.aclose()


async def test_where_the_second_prompt_finds_no_room_the_first_does_not_stay_queued() -> None:
    stack = Stack()
    async with stack.gateway(max_queued=1).running() as service:
        await stack.engine.appear()
        with pytest.raises(QueueFull) as caught:
            await service.start(call("one", "two"))
        await eventually(stack.queue_is_empty)
    assert caught.value.retry_after_s
