"""Server spans: below the caller's, one for each request behind the door, true about its end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import httpx
from headrace_gateway.errors import NoEngine
from headrace_kit.traces import Tracing, trace_id_of
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.fake_inference import KEY, words
from support.http_edge import Edge
from support.otlp import attributes, otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


@asynccontextmanager
async def traced(
    edge: Edge, key: str | None = KEY
) -> AsyncGenerator[tuple[httpx.AsyncClient, Callable[[], list[Span]]]]:
    """A client of ``edge``, and what ends the tracing and gives its spans."""
    with otlp_receiver() as receiver:
        edge.tracing = Tracing.start("gateway", receiver.endpoint)

        def told() -> list[Span]:
            edge.tracing.close()
            return receiver.all_spans()

        async with edge.client(key=key) as client:
            yield client, told


async def test_a_call_has_one_span_below_its_callers_and_hands_it_on(edge: Edge) -> None:
    async with traced(edge) as (client, told):
        answer = await client.post(
            "/v1/chat/completions",
            json=CHAT,
            headers={"traceparent": PARENT, "x-request-id": "mine"},
        )
        [span] = told()
    [call] = edge.service.calls
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT.split("-")[2])
    assert call.span.traceparent == f"00-{TRACE}-{span.span_id.hex()}-01"
    assert span.kind == Span.SPAN_KIND_SERVER
    found = attributes(span)
    assert found == {
        "gen_ai.request.stream": False,
        "headrace.request": answer.json()["id"],
        "headrace.request_label": "mine",
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/v1/chat/completions",
    }
    assert span.status.code == span.status.STATUS_CODE_UNSET


async def test_a_stream_is_traced_until_its_last_byte(edge: Edge) -> None:
    async with traced(edge) as (client, told):
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        assert answer.text.endswith("data: [DONE]\n\n")
        [span] = told()
    assert attributes(span)["gen_ai.request.stream"] is True


async def test_a_refusal_names_its_code_and_only_our_faults_are_failures(edge: Edge) -> None:
    async with traced(edge) as (client, told):
        await client.post("/v1/chat/completions", json={"model": "m"})
        edge.service.refusal = NoEngine("nobody", retry_after_s=1)
        await client.post("/v1/chat/completions", json=CHAT)
        edge.service.refusal = ZeroDivisionError()
        await client.post("/v1/chat/completions", json=CHAT)
        spans = told()
    assert {span.name for span in spans} == {"POST /v1/chat/completions"}
    faults = [
        (
            attributes(span)["error.type"],
            attributes(span).get("http.response.status_code"),
            span.status.code == span.status.STATUS_CODE_ERROR,
        )
        for span in spans
    ]
    assert faults == [
        ("invalid_request", 400, False),
        ("no_engine", 503, True),
        ("ZeroDivisionError", None, True),
    ]


async def test_a_stream_that_breaks_in_the_middle_is_a_failure(edge: Edge) -> None:
    edge.service.script = lambda _call: [words("a", "b")[0], ZeroDivisionError()]
    async with traced(edge) as (client, told):
        await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        [span] = told()
    assert attributes(span)["error.type"] == "ZeroDivisionError"
    assert span.status.code == span.status.STATUS_CODE_ERROR


async def test_probes_and_callers_without_a_key_leave_no_trace(edge: Edge) -> None:
    async with traced(edge, key=None) as (client, told):
        await client.get("/health/live")
        await client.get("/metrics")
        assert (await client.get("/v1/models")).status_code == 401
        assert told() == []


async def test_without_tracing_the_callers_trace_is_handed_on(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": PARENT})
    await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": "nonsense"})
    assert [call.span.traceparent for call in edge.service.calls] == [PARENT, ""]
    assert trace_id_of(edge.service.calls[0].span.traceparent) == TRACE
