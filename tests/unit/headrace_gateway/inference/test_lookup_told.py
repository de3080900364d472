"""What a client here has been told counts at once, also while the server waits for the engine's word."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.errors import RateLimitExceeded
from headrace_gateway.inference.calls import SamplingCall
from support.wire import CALLER, Stack, call, finishes, read


@pytest.mark.parametrize("how", ["by its engine", "by a cancel"])
async def test_who_has_the_answer_finds_the_request_ended(how: str) -> None:
    stack = Stack()
    asked = call("x", sampling=SamplingCall(n=2, max_tokens=16))
    async with stack.claimed(stack.gateway(), asked) as (service, running, claimed):
        await stack.engine.say(claimed, "abc", choice=0)
        assert (await service.request("cmpl-1", CALLER)).status == "running"
        if how == "by its engine":
            reason = FinishReason.LENGTH
            for choice in (0, 1):
                await stack.engine.say(claimed, "de", choice=choice, finish=reason)
            tokens = 7
        else:
            reason = FinishReason.CANCELLED
            await read(running, until=1)
            assert await service.cancel("cmpl-1", CALLER)
            tokens = 3
        assert finishes(await read(running)) == {0: reason, 1: reason}
        state = await stack.engine.wire.renew("toy", "engine-a", {"cmpl-1": 1}, lease_ms=60_000)
        assert not state.lost, "its engine has not settled it yet"
        info = await service.request("cmpl-1", CALLER)
        assert (info.status, info.finish, info.tokens) == ("finished", reason, tokens)
        assert info.usage is not None
        assert info.usage.completion_tokens == tokens
        assert (await service.why("cmpl-1", CALLER)).reason == "finished"
        assert await service.requests(CALLER, limit=9) == ([], False)
        await running.aclose()


@pytest.mark.parametrize("how", ["by its engine", "by a cancel"])
async def test_who_has_the_answer_may_ask_again_within_its_keys_concurrency(how: str) -> None:
    stack = Stack()
    one = replace(CALLER, max_concurrency=1)
    async with stack.claimed(stack.gateway(), call("x", caller=one)) as (service, first, claimed):
        await stack.engine.say(claimed, "a")
        await read(first, until=1)
        with pytest.raises(RateLimitExceeded):
            await service.start(call("y", caller=one, request_id="cmpl-2"))
        if how == "by its engine":
            await stack.engine.say(claimed, "b", finish=FinishReason.LENGTH)
            await read(first)
        else:
            assert await service.cancel("cmpl-1", one)
        second = await service.start(call("y", caller=one, request_id="cmpl-2"))
        with pytest.raises(RateLimitExceeded):
            await service.start(call("z", caller=one, request_id="cmpl-3"))
        for each in (first, second):
            await each.aclose()
