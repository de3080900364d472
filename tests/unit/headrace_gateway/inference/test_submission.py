"""Calls on their way into a queue: bounds, refusals, and what was queued before one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from headrace_contracts.pb.queue_pb2 import LogEntry, RequestRecord
from headrace_gateway.errors import BackendUnavailable, QueueFull, RateLimitExceeded
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import Queued
from headrace_transport.memory import MemoryGatewayWire
from support.waiting import eventually
from support.wire import CALLER, Gateway, Stack, call


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


class LostAnswer(MemoryGatewayWire):
    """What is submitted is queued, but its answer does not arrive."""

    async def submit(
        self,
        record: RequestRecord,
        *,
        max_queued: int,
        max_concurrency: int | None = None,
        over: Sequence[str] = (),
        resume: LogEntry | None = None,
    ) -> Queued:
        await super().submit(
            record,
            max_queued=max_queued,
            max_concurrency=max_concurrency,
            over=over,
            resume=resume,
        )
        raise TransportUnavailable("the connection broke")


async def test_what_may_have_been_queued_when_the_server_went_away_is_cancelled() -> None:
    stack = Stack()
    async with Gateway(LostAnswer(stack.broker)).running() as service:
        await stack.engine.appear()
        with pytest.raises(BackendUnavailable):
            await service.start(call("x"))
        await eventually(stack.queue_is_empty)
