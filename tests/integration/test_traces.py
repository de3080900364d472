"""One trace from a caller through gateway, server and engine; both processes export for real."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from headrace_engine.intake.spans import attempt_span_id
from support.otlp import OtlpReceiver, attributes, otlp_receiver
from support.process import Process, engine_process
from support.processes import GatewayProgram, gateway_program, make_key
from support.redis import RedisServer
from support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
PARTS = ("queue", "prefill", "decode")


@pytest.fixture
def receiver() -> Generator[OtlpReceiver]:
    with otlp_receiver() as started:
        yield started


def echo_engine(folder: Path, server: RedisServer, receiver: OtlpReceiver, *more: str) -> Process:
    """An engine whose model gateways can serve."""
    return engine_process(
        folder,
        server.url,
        *("--echo-tokenizer", "--otlp-endpoint", receiver.endpoint),
        *("--otlp-interval-s", "3600", "--lease-ms", "1000", *more),
    )


@asynccontextmanager
async def client_of(
    program: GatewayProgram, server: RedisServer
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with a key, once the gateway and a model are there."""
    await program.ready()
    headers = {"Authorization": f"Bearer {await make_key(server.url)}"}
    async with httpx.AsyncClient(base_url=program.url, headers=headers, timeout=60) as client:

        async def serves() -> bool:
            models = (await client.get("/v1/models")).json()["data"]
            return any(model["ready"] for model in models)

        await eventually(serves)
        yield client


def lines_of(log: str, event: str) -> list[dict[str, object]]:
    """The log's lines of one event."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


async def test_a_chat_is_one_trace_from_its_caller_to_the_engines_passes(
    own_server: RedisServer, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    engine = echo_engine(tmp_path / "engine", own_server, receiver, "--echo-step-ms", "5")
    told = {"otlp_endpoint": receiver.endpoint, "otlp_interval_s": 3600}
    try:
        async with gateway_program(own_server.url, tmp_path / "gateway", told) as program:
            async with client_of(program, own_server) as client:
                answer = await client.post(
                    "/v1/chat/completions",
                    json={
                        "model": "m",
                        "max_tokens": 8,
                        "messages": [{"role": "user", "content": "Hello"}],
                    },
                    headers={"traceparent": PARENT},
                )
                assert answer.status_code == 200, answer.text
            spans = receiver.wait_for_spans("chat m", "process", *PARTS)
            gateway_log = program.log
    finally:
        engine.stop()
    mine = {span.name: span for span in spans if span.trace_id.hex() == TRACE}
    assert set(mine) == {"chat m", "process", *PARTS}
    call, process = mine["chat m"], mine["process"]
    assert call.parent_span_id.hex() == PARENT.split("-")[2]
    assert process.parent_span_id == call.span_id
    assert {mine[name].parent_span_id for name in PARTS} == {process.span_id}
    usage = answer.json()["usage"]
    for span in (call, process):
        assert attributes(span)["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 8
        assert attributes(span)["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    queue, prefill, decode = (mine[name] for name in PARTS)
    assert process.start_time_unix_nano == queue.start_time_unix_nano
    assert queue.end_time_unix_nano == prefill.start_time_unix_nano
    assert prefill.end_time_unix_nano == decode.start_time_unix_nano
    assert decode.end_time_unix_nano <= process.end_time_unix_nano
    assert decode.end_time_unix_nano - decode.start_time_unix_nano >= 7 * 5_000_000
    for log in (gateway_log, engine.log()):
        assert [line["trace_id"] for line in lines_of(log, "request.finished")] == [TRACE]


async def test_the_attempt_that_follows_a_crash_points_at_the_one_before(
    own_server: RedisServer, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    slow = ("--echo-step-ms", "20")
    first = echo_engine(tmp_path / "first", own_server, receiver, *slow)
    second: Process | None = None
    try:
        async with gateway_program(own_server.url, tmp_path / "gateway") as program:
            async with (
                client_of(program, own_server) as client,
                client.stream(
                    "POST",
                    "/v1/completions",
                    json={"model": "m", "prompt": "Hello", "max_tokens": 150, "stream": True},
                    headers={"traceparent": PARENT},
                ) as answer,
            ):
                ids: set[str] = set()
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        ids.add(json.loads(line[6:])["id"])
                    if ids and second is None:
                        first.kill()
                        second = echo_engine(tmp_path / "second", own_server, receiver, *slow)
            spans = receiver.wait_for_spans("process")
    finally:
        first.stop()
        if second is not None:
            second.stop()
    [request] = ids
    [process] = [span for span in spans if span.name == "process"]
    # The gateway traces nothing here: it hands the caller's trace on.
    assert process.parent_span_id.hex() == PARENT.split("-")[2]
    assert attributes(process)["headrace.attempt"] == 2
    assert [int.from_bytes(link.span_id) for link in process.links] == [attempt_span_id(request, 1)]
