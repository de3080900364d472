"""Calls over gRPC, through a real server and client."""

from __future__ import annotations

import grpc
import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.inference_pb2 import (
    CancelRequest,
    ChatMessage,
    ChatPrompt,
    GenerateRequest,
    ListModelsRequest,
    TokenPrompt,
)
from headrace_contracts.pb.queue_pb2 import RowLogprobs
from headrace_kit.clock import SystemClock
from headrace_kit.traces import Tracing
from support.otlp import attributes, otlp_receiver
from support.rpc import closed, events_of, failure_of, queued, served
from support.waiting import eventually
from support.wire import MODEL, toy_ids


async def test_generate_streams_text_logprobs_finish_and_usage() -> None:
    async with served() as it:
        call = it.generate(text="Hello", logprobs=0, return_token_ids=True, max_tokens=9)
        [claimed] = await it.stack.engine.claim()
        assert list(claimed.record.prompt) == toy_ids("Hello")
        columns = RowLogprobs(chosen=[-0.5, -0.25])
        await it.stack.engine.say(claimed, "ab", logprobs=columns, cached=2)
        await it.stack.engine.say(claimed, "", finish=FinishReason.LENGTH)
        events = await events_of(call)
        assert "".join(event.text for event in events) == "ab"
        assert [token for event in events for token in event.token_ids] == toy_ids("ab")
        assert [lp.logprob for event in events for lp in event.logprobs] == [-0.5, -0.25]
        assert events[-1].finish == codes_pb2.FINISH_REASON_LENGTH
        usage = events[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (5, 2, 2)
        assert not any(event.HasField("usage") for event in events[:-1])
        assert {event.id for event in events} == {claimed.record.id}
        metadata = dict(await call.initial_metadata())
        assert metadata["x-request-id"] == claimed.record.id


async def test_chat_and_tokens_are_prompts_too_and_choices_keep_their_index() -> None:
    async with served() as it:
        chat = ChatPrompt(messages=[ChatMessage(role="user", content="hey")])
        call = it.generate(chat=chat, n=2, max_tokens=5)
        [claimed] = await it.stack.engine.claim()
        assert list(claimed.record.prompt) == toy_ids("hey")
        for choice in (1, 0):
            await it.stack.engine.say(
                claimed, f"c{choice}", choice=choice, finish=FinishReason.LENGTH
            )
        events = await events_of(call)
        assert {event.index: event.text for event in events} == {0: "c0", 1: "c1"}

        call = it.generate(tokens=TokenPrompt(ids=[65, 66]))
        [claimed] = await it.stack.engine.claim()
        assert list(claimed.record.prompt) == [65, 66]
        assert claimed.record.sampling.max_new_tokens == 16
        call.cancel()


async def test_a_client_that_cancels_stops_the_engine() -> None:
    async with served() as it:
        call = it.generate(text="x")
        [claimed] = await it.stack.engine.claim()
        await it.stack.engine.say(claimed, "a")
        assert (await call.read()).text == "a"
        call.cancel()
        assert (await it.stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
        await eventually(lambda: closed(it.gateway))


async def test_a_deadline_travels_to_the_engine_as_what_is_left_and_stops_it() -> None:
    async with served() as it:
        await it.channel.channel_ready()  # what a deadline leaves is for the call
        before_ms = SystemClock().wall_ms()
        call = it.generate(timeout=4, text="x")
        [claimed] = await it.stack.engine.claim()
        # gRPC sends what is left in steps of 10 ms, rounded up; 1 ms more where clocks are rounded
        assert before_ms < claimed.record.deadline_ms <= SystemClock().wall_ms() + 4000 + 11
        error = await failure_of(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await it.stack.engine.await_mark(claimed)
        await eventually(lambda: closed(it.gateway))


async def test_a_deadline_beyond_the_operators_bound_is_kept_by_the_client_alone() -> None:
    async with served(max_deadline_s=1) as it:
        call = it.generate(timeout=4, text="x")
        [claimed] = await it.stack.engine.claim()
        assert claimed.record.deadline_ms == 0
        call.cancel()


async def test_a_deadline_in_the_queue_frees_its_place() -> None:
    async with served() as it:
        error = await failure_of(it.generate(timeout=0.2, text="x"))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await eventually(it.stack.queue_is_empty)


async def test_errors_come_from_the_table_with_their_code_and_parameter() -> None:
    async with served() as it:
        error = await failure_of(it.generate(text="x", temperature=9))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        trailers = dict(error.trailing_metadata())
        assert trailers["headrace-code"] == "invalid_request"
        assert trailers["headrace-param"] == "temperature"
        assert (await failure_of(it.generate())).code() is grpc.StatusCode.INVALID_ARGUMENT
        unknown = it.inference.Generate(
            GenerateRequest(model="nope", text="x"), metadata=it.metadata
        )
        assert (await failure_of(unknown)).code() is grpc.StatusCode.NOT_FOUND


async def test_a_full_queue_says_when_to_come_back() -> None:
    async with served(max_queued=1) as it:
        first = it.generate(text="x")
        await eventually(lambda: queued(it.stack))
        error = await failure_of(it.generate(text="y"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert int(dict(error.trailing_metadata())["retry-after"]) >= 1
        first.cancel()


async def test_cancel_by_id_ends_the_stream_and_says_whether_it_did() -> None:
    async with served() as it:
        call = it.generate(text="x")
        [claimed] = await it.stack.engine.claim()
        request = CancelRequest(id=claimed.record.id)
        assert (await it.inference.Cancel(request, metadata=it.metadata)).cancelled
        assert (await failure_of(call)).code() is grpc.StatusCode.CANCELLED
        unknown = CancelRequest(id="cmpl-none")
        assert not (await it.inference.Cancel(unknown, metadata=it.metadata)).cancelled


async def test_models_are_listed() -> None:
    async with served() as it:
        answer = await it.inference.ListModels(ListModelsRequest(), metadata=it.metadata)
        [model] = answer.models
        assert (model.id, model.context_tokens, model.ready) == (MODEL, 128, True)


@pytest.mark.parametrize("odd", ["", "a b", "a\0", "a" * 1000])
async def test_cancel_of_what_can_be_no_id_cancels_nothing(odd: str) -> None:
    async with served() as it:
        answer = await it.inference.Cancel(CancelRequest(id=odd), metadata=it.metadata)
        assert not answer.cancelled


async def test_a_fault_of_ours_is_internal_and_tells_nothing_of_its_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    async with served() as it:
        for method in ("start", "cancel", "models"):
            monkeypatch.setattr(it.gateway.service, method, broken)
        for call in (
            it.inference.Cancel(CancelRequest(id="r"), metadata=it.metadata),
            it.inference.ListModels(ListModelsRequest(), metadata=it.metadata),
            it.generate(text="x").read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in (caught.value.details() or "")
        for method in ("Cancel", "ListModels", "Generate"):
            name = "headrace_gateway_grpc_requests_total"
            assert it.gateway.value(name, method=method, status="INTERNAL") == 1


async def test_each_call_has_a_span_below_its_callers() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        async with served(tracing=tracing) as it:
            good = it.inference.Generate(
                GenerateRequest(model=MODEL, text="x", max_tokens=5),
                metadata=(*it.metadata, ("traceparent", parent)),
            )
            [claimed] = await it.stack.engine.claim()
            await it.stack.engine.say(claimed, "a", finish=FinishReason.LENGTH)
            await events_of(good)
            await failure_of(it.inference.Generate(GenerateRequest(), metadata=it.metadata))
            await it.stack.engine.leave()
            await failure_of(it.generate(text="x"))
        tracing.close()
        first, bad, failed = receiver.all_spans()
    assert first.name == f"text_completion {MODEL}"
    assert first.parent_span_id.hex() == parent.split("-")[2]
    assert claimed.record.traceparent.split("-")[2] == first.span_id.hex()
    assert attributes(first)["gen_ai.usage.output_tokens"] == 1
    seen = [
        (
            attributes(span)["rpc.grpc.status_code"],
            attributes(span).get("error.type"),
            span.status.code == span.status.STATUS_CODE_ERROR,
        )
        for span in (first, bad, failed)
    ]
    assert seen == [
        (0, None, False),
        (grpc.StatusCode.INVALID_ARGUMENT.value[0], "invalid_request", False),
        (grpc.StatusCode.UNAVAILABLE.value[0], "no_engine", True),
    ]


async def test_a_stream_that_is_cut_off_says_where_to_read_on_and_is_resumed() -> None:
    async with served(handover_s=60) as it:
        call = it.generate(text="x", max_tokens=9)
        [claimed] = await it.stack.engine.claim()
        await it.stack.engine.say(claimed, "ab")
        first = await call.read()
        assert (first.text, first.cursor) == ("ab", str(len(toy_ids("ab"))))
        await it.gateway.service.drain(0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        trailers = {key: str(value) for key, value in caught.value.trailing_metadata() or ()}
        assert trailers["headrace-code"] == "draining"
        place = (trailers["headrace-resume-id"], trailers["headrace-resume-after"])
        assert place == (claimed.record.id, first.cursor)

        async with served(beside=it) as other:
            rest = other.resume(*place)
            await it.stack.engine.obey_attach(claimed)
            await it.stack.engine.say(claimed, "cd", finish=FinishReason.LENGTH)
            events = await events_of(rest)
            assert "".join(event.text for event in events) == "cd"
            assert events[-1].usage.completion_tokens == len(toy_ids("abcd"))
            missing = await failure_of(other.resume("cmpl-none", ""))
            assert missing.code() is grpc.StatusCode.NOT_FOUND
