"""Calls through the whole service, over the wire in memory, with a scripted engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_gateway.errors import (
    ContextLengthExceeded,
    Draining,
    HandedOver,
    InvalidRequest,
    ModelNotFound,
    NoEngine,
    PermissionDenied,
    QueueFull,
    RequestNotFound,
)
from headrace_gateway.inference.calls import KeepAlive, SamplingCall, TokenPrompt
from support.clock import FakeClock
from support.waiting import eventually
from support.wire import (
    CALLER,
    END,
    Gateway,
    LateAttach,
    Stack,
    call,
    done,
    finishes,
    read,
    texts,
    toy_ids,
)

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


async def test_text_streams_as_the_engine_says_it_and_usage_is_summed_at_the_end() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway(), call("Hello")) as (_, running, claimed):
        assert list(claimed.record.prompt) == toy_ids("Hello")
        await stack.engine.say(claimed, "Hi", cached=3)
        assert texts(await read(running, until=1)) == {0: "Hi"}
        assert running.cursor == "2"
        await stack.engine.say(claimed, [*toy_ids("!"), END], finish=STOP)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "!"}
    assert finishes(events) == {0: STOP}
    usage = done(events).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 4, 3)


async def test_choices_of_one_prompt_keep_their_index_and_their_text() -> None:
    stack = Stack()
    async with stack.claimed(
        stack.gateway(), call("x", sampling=SamplingCall(n=3, max_tokens=4))
    ) as (_, running, claimed):
        assert claimed.record.n == 3
        for choice, text in ((2, "cc"), (0, "aa"), (1, "bb")):
            await stack.engine.say(claimed, text, choice=choice, finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "aa", 1: "bb", 2: "cc"}
    assert finishes(events) == dict.fromkeys(range(3), LENGTH)
    assert done(events).usage.completion_tokens == 6
    assert done(events).usage.prompt_tokens == 1


async def test_prompts_of_a_batch_get_indices_prompt_times_n_plus_choice() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(
            call("ab", "cde", sampling=SamplingCall(n=2, max_tokens=4), echo=True)
        )
        claimed = await stack.engine.claim(2)
        by_id = {each.record.id: each for each in claimed}
        assert set(by_id) == {"cmpl-1.0", "cmpl-1.1"}
        for prompt in range(2):
            for choice in range(2):
                await stack.engine.say(
                    by_id[f"cmpl-1.{prompt}"], f"{prompt}{choice}", choice=choice, finish=LENGTH
                )
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "ab00", 1: "ab01", 2: "cde10", 3: "cde11"}
    assert done(events).usage.prompt_tokens == 5


async def test_one_bad_prompt_of_a_batch_queues_nothing() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with pytest.raises(ContextLengthExceeded) as caught:
            await service.start(call("ok", TokenPrompt([65] * 200)))
        assert await stack.queue_is_empty()
    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert "128" in caught.value.message
    assert "216" in caught.value.message


async def test_context_is_exact_at_its_edge() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        fits = SamplingCall(max_tokens=28)
        running = await service.start(call(TokenPrompt([65] * 100), sampling=fits))
        await running.aclose()
        with pytest.raises(ContextLengthExceeded):
            await service.start(call(TokenPrompt([65] * 101), sampling=fits))
        open_end = SamplingCall(max_tokens=None)
        running = await service.start(
            call(TokenPrompt([65] * 127), sampling=open_end, request_id="cmpl-2")
        )
        [claimed] = await stack.engine.claim()
        assert claimed.record.sampling.max_new_tokens == 1
        await running.aclose()
        with pytest.raises(ContextLengthExceeded):
            await service.start(call(TokenPrompt([65] * 128), sampling=open_end))


async def test_stop_string_across_tokens_ends_the_choice_here_and_tells_the_engine_where() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x", sampling=SamplingCall(max_tokens=9, stop=("END",))))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "okE")
        await stack.engine.say(claimed, "NDxyz")
        events = await read(running)
        mark = await stack.engine.await_mark(claimed)
        await running.aclose()
    assert texts(events) == {0: "ok"}
    assert finishes(events) == {0: STOP}
    assert done(events).usage.completion_tokens == 5
    assert (mark.reason, mark.choice) == (STOP, 0)


async def test_stop_string_counts_only_after_min_tokens() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        sampling = SamplingCall(max_tokens=12, stop=("I",), min_tokens=6)
        running = await service.start(call("x", sampling=sampling))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "GHIJKLMI")
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "GHIJKLM"}


async def test_text_held_back_for_a_stop_string_comes_out_at_another_end() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(call("x", sampling=SamplingCall(max_tokens=4, stop=("END",))))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "okEN", finish=LENGTH)
        events = await read(running)
        await running.aclose()
    assert texts(events) == {0: "okEN"}
    assert finishes(events) == {0: LENGTH}


async def test_a_reader_that_leaves_cancels_what_is_running() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(claimed, "a")
        await read(running, until=1)
        await running.aclose()
        await running.aclose()
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
    assert gateway.value("headrace_gateway_cancels_total", cause="disconnect") == 1
    assert gateway.value("headrace_gateway_requests_finished_total", reason="cancelled") == 1
    assert gateway.value("headrace_gateway_requests_open") == 0
    assert gateway.value("headrace_gateway_streams_open") == 0


async def test_a_reader_that_leaves_frees_its_place_in_the_queue() -> None:
    stack = Stack()
    async with stack.gateway(max_queued=1).running() as service:
        await stack.engine.appear()
        first = await service.start(call("x"))
        with pytest.raises(QueueFull) as caught:
            await service.start(call("y", request_id="cmpl-2"))
        assert caught.value.retry_after_s is not None
        assert 1 <= caught.value.retry_after_s <= 120
        await first.aclose()
        await eventually(stack.queue_is_empty)
        second = await service.start(call("y", request_id="cmpl-2"))
        await second.aclose()


async def test_cancel_by_id_ends_the_stream_in_every_state() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        queued = await service.start(call("x", request_id="cmpl-q"))
        assert await service.cancel("cmpl-q", CALLER)
        assert finishes(await read(queued)) == {0: FinishReason.CANCELLED}
        assert not await service.cancel("cmpl-q", CALLER)
        await queued.aclose()

        running = await service.start(call("x", request_id="cmpl-r"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        await read(running, until=1)
        await running.cancel()
        events = await read(running)
        assert finishes(events) == {0: FinishReason.CANCELLED}
        assert done(events).usage.completion_tokens == 2
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
        await running.aclose()


async def test_the_place_of_a_cancelled_queued_call_is_free_when_cancel_returns() -> None:
    stack = Stack()
    async with stack.gateway(max_queued=1).running() as service:
        await stack.engine.appear()
        first = await service.start(call("x", request_id="cmpl-1"))
        await service.cancel("cmpl-1", CALLER)
        second = await service.start(call("y", request_id="cmpl-2"))
        await first.aclose()
        await second.aclose()


async def test_another_key_can_neither_see_nor_cancel_nor_resume_a_request() -> None:
    stack = Stack()
    stranger = replace(CALLER, key_id="key2")
    async with stack.gateway().running() as service, stack.gateway("gateway-b").running() as other:
        await stack.engine.appear()
        running = await service.start(call("x"))
        for place in (service, other):
            with pytest.raises(RequestNotFound):
                await place.cancel("cmpl-1", stranger)
            with pytest.raises(RequestNotFound):
                await place.resume("cmpl-1", "", stranger)
            with pytest.raises(RequestNotFound):
                await place.request("cmpl-1", stranger)
        assert (await other.request("cmpl-1", CALLER)).status == "queued"
        await running.aclose()


async def test_unknown_and_forbidden_models_are_told_apart() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with pytest.raises(ModelNotFound, match="1 model known"):
            await service.start(call("x", model="gpt-9"))
        with pytest.raises(PermissionDenied):
            await service.start(call("x", caller=replace(CALLER, models=frozenset({"other"}))))


async def test_without_an_engine_a_call_is_refused_unless_it_may_wait_for_one() -> None:
    stack = Stack()
    await stack.engine.appear()
    await stack.engine.leave()
    async with stack.gateway().running() as service:
        with pytest.raises(NoEngine):
            await service.start(call("x"))
        assert [model.ready for model in await service.models(CALLER)] == [False]
    async with stack.gateway("gateway-b", scale_from_zero=True).running() as service:
        running = await service.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "late", finish=LENGTH)
        assert texts(await read(running)) == {0: "late"}
        await running.aclose()


async def test_deadline_ends_a_queued_call_and_frees_its_place() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    gateway = stack.gateway()
    async with gateway.running() as service:
        await stack.engine.appear()
        running = await service.start(call("x", deadline_s=0.15))
        clock.advance(0.2)
        assert finishes(await read(running)) == {0: FinishReason.DEADLINE}
        await running.aclose()
    assert gateway.value("headrace_gateway_requests_finished_total", reason="deadline") == 1


async def test_silence_is_told_as_keep_alive() -> None:
    stack = Stack()
    async with stack.gateway(keepalive_s=0.06).running() as service:
        await stack.engine.appear()
        running = await service.start(call("x"))
        assert await read(running, until=2) == [KeepAlive(), KeepAlive()]
        await running.aclose()


async def test_a_slow_reader_gets_what_it_missed_in_one_delta() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (service, running, claimed):
        for char in "slowly":
            await stack.engine.say(claimed, char)
        await stack.engine.say(claimed, "", finish=LENGTH)
        quick = await service.resume(running.id, "", CALLER)
        await read(quick)
        events = await read(running)
        for each in (running, quick):
            await each.aclose()
    assert len(events) == 2
    assert texts(events) == {0: "slowly"}


async def test_an_engines_error_is_the_choices_end_with_its_code() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with stack.claimed(gateway) as (_, running, claimed):
        await stack.engine.say(
            claimed,
            "a",
            finish=FinishReason.ERROR,
            code=Code.NUMERIC_FAILURE,
            message="logits were not finite",
        )
        events = await read(running)
        await running.aclose()
    delta = events[-2]
    assert finishes(events) == {0: FinishReason.ERROR}
    assert getattr(delta, "code", None) is Code.NUMERIC_FAILURE
    assert gateway.value("headrace_gateway_requests_finished_total", reason="error") == 1


async def test_bad_calls_are_counted_and_nothing_is_queued() -> None:
    stack = Stack()
    gateway = stack.gateway()
    async with gateway.running() as service:
        await stack.engine.appear()
        with pytest.raises(InvalidRequest):
            await service.start(call("x", sampling=SamplingCall(temperature=float("nan"))))
        with pytest.raises(InvalidRequest):
            await service.start(call(""))
        with pytest.raises(InvalidRequest):
            await service.start(call())
    assert gateway.value("headrace_gateway_requests_rejected_total", code="invalid_request") == 3
    assert gateway.value("headrace_gateway_requests_started_total") == 0


async def test_a_draining_gateway_takes_nothing_up_that_it_let_go() -> None:
    stack = Stack()
    async with stack.gateway().running() as service, stack.gateway("gateway-b").running() as other:
        await stack.engine.appear()
        running = await service.start(replace(call("Hello"), resumable=True))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "Hi")
        await read(running, until=1)
        await service.drain(0)
        with pytest.raises(HandedOver):
            await read(running)
        await running.aclose()
        with pytest.raises(Draining):
            await service.resume(running.id, running.cursor, CALLER)
        taken_up = await other.resume(running.id, running.cursor, CALLER)
        await stack.engine.obey_attach(claimed)
        await stack.engine.say(claimed, "!", finish=LENGTH)
        assert texts(await read(taken_up)) == {0: "!"}
        await taken_up.aclose()
    assert await stack.engine.marks(claimed) == []


async def test_a_call_that_is_admitted_while_a_drain_ends_is_let_go_with_the_others() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        starting = asyncio.create_task(service.start(replace(call("Hello"), resumable=True)))
        await asyncio.sleep(0)  # it has been admitted, and nothing of it is queued
        await service.drain(0)
        running = await starting
        with pytest.raises(HandedOver):
            await read(running)
        await running.aclose()
        [claimed] = await stack.engine.claim()
    assert await stack.engine.marks(claimed) == []


async def test_a_drain_waits_for_its_readers_to_tell_their_clients() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        running = await service.start(replace(call("Hello"), resumable=True))
        drained = asyncio.create_task(service.drain(0))
        with pytest.raises(HandedOver):
            await read(running)
        assert not drained.done()
        await running.aclose()
        await drained


async def test_a_stream_is_handed_over_only_when_nothing_can_take_it_back() -> None:
    stack = Stack()
    wire = LateAttach(stack.broker)
    gateway = Gateway(wire, handover_s=60)
    async with gateway.running() as service:
        await stack.engine.appear()
        running = await service.start(replace(call("x"), resumable=True))
        await stack.engine.claim()
        async with asyncio.timeout(20):
            await wire.on_its_way.wait()  # the engine says nothing: the gateway looks after it
        reading = asyncio.create_task(read(running))
        drained = asyncio.create_task(service.drain(0))
        await asyncio.sleep(0.05)
        assert not reading.done()
        wire.through.set()
        with pytest.raises(HandedOver):
            await reading
        await running.aclose()
        await drained
