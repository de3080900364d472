"""What a call's span says of it, from admission to its end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_gateway.errors import InvalidRequest
from headrace_gateway.inference.calls import SamplingCall
from headrace_gateway.inference.spans import operation_of
from headrace_kit.traces import Tracing
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import OtlpReceiver, attributes, otlp_receiver
from support.wire import CALLER, MODEL, Stack, call, finishes, read


class Traced:
    """Tracing that ends in a receiver."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self.tracing = Tracing.start("gateway", receiver.endpoint)
        self._receiver = receiver

    def told(self) -> list[Span]:
        """Everything that arrived."""
        self.tracing.close()
        return self._receiver.all_spans()


@pytest.fixture
def traced() -> Generator[Traced]:
    with otlp_receiver() as receiver:
        yield Traced(receiver)


@contextmanager
def edge_span(traced: Traced, name: str = "edge") -> Generator[Any]:
    """A span as an edge makes it."""
    span = traced.tracing.begin(name, kind="server")
    try:
        yield span
    finally:
        span.end()


async def test_a_finished_call_tells_request_response_and_usage(traced: Traced) -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with edge_span(traced) as span:
            sampling = SamplingCall(
                n=2, max_tokens=7, temperature=0.5, top_p=0.25, top_k=3, seed=9, stop=("secret",)
            )
            running = await service.start(call("hello", sampling=sampling, span=span))
            [claimed] = await stack.engine.claim()
            assert claimed.record.traceparent == span.traceparent
            await stack.engine.say(claimed, "ab", choice=0, finish=FinishReason.LENGTH, cached=2)
            await stack.engine.say(claimed, "c", choice=1, finish=FinishReason.STOP)
            await read(running)
            await running.aclose()
    [told] = traced.told()
    assert told.name == f"text_completion {MODEL}"
    found = attributes(told)
    assert found.pop("gen_ai.response.time_to_first_chunk") > 0
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.seed": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.top_p": 0.25,
        "gen_ai.response.finish_reasons": ["length", "stop"],
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.model": MODEL,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 3,
        "headrace.attempts": 1,
        "headrace.band": CALLER.band,
        "headrace.key": CALLER.key_id,
        "headrace.outcome": "length",
        "headrace.prompts": 1,
        "headrace.tenant": CALLER.tenant,
    }
    assert told.status.code == told.status.STATUS_CODE_UNSET


async def test_a_call_that_its_engine_fails_is_a_failed_span(traced: Traced) -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with edge_span(traced) as span:
            running = await service.start(call("x", span=span))
            [claimed] = await stack.engine.claim()
            await stack.engine.say(
                claimed, "", finish=FinishReason.ERROR, code=Code.NUMERIC_FAILURE
            )
            assert finishes(await read(running)) == {0: FinishReason.ERROR}
            await running.aclose()
    [told] = traced.told()
    assert told.status.code == told.status.STATUS_CODE_ERROR
    assert attributes(told)["error.type"] == "numeric_failure"


async def test_a_refused_call_is_not_described(traced: Traced) -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with edge_span(traced) as span:
            bad = SamplingCall(temperature=99)
            with pytest.raises(InvalidRequest):
                await service.start(call("x", sampling=bad, span=span))
    [told] = traced.told()
    assert (told.name, attributes(told)) == ("edge", {})


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_resumed_stream_points_at_the_call_that_it_goes_on_with(
    traced: Traced, elsewhere: bool
) -> None:
    stack = Stack()
    first, second = stack.gateway(resume_grace_s=30), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        with edge_span(traced, "first") as span:
            running = await here.start(call("x", span=span))
            [claimed] = await stack.engine.claim()
            await stack.engine.say(claimed, "a")
            await running.aclose()
        with edge_span(traced, "again") as span:
            again = await (there if elsewhere else here).resume("cmpl-1", "", CALLER, span=span)
            if elsewhere:
                await stack.engine.obey_attach(claimed)
            await stack.engine.say(claimed, "b", finish=FinishReason.LENGTH)
            await read(again)
            await again.aclose()
    spans = {span.name: span for span in traced.told()}
    original, resumed = spans[f"text_completion {MODEL}"], spans["again"]
    assert [(link.trace_id, link.span_id) for link in resumed.links] == [
        (original.trace_id, original.span_id)
    ]
    assert resumed.trace_id != original.trace_id


def test_operations_have_the_conventions_names() -> None:
    assert (operation_of("chat"), operation_of("completion")) == ("chat", "text_completion")
