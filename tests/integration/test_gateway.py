"""The gateway as a process, on a real server, with a scripted engine; HTTP and gRPC as clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.inference_pb2 import GenerateRequest
from headrace_contracts.pb.inference_pb2_grpc import InferenceStub
from headrace_transport.connection import connect_engine
from support.processes import GatewayProgram, gateway_program, make_key
from support.redis import RedisServer, redis_server
from support.waiting import eventually
from support.wire import MODEL, ScriptedEngine


@asynccontextmanager
async def engine_at(url: str, name: str = "engine-a") -> AsyncGenerator[ScriptedEngine]:
    """A scripted engine over a real server."""
    wire = await connect_engine(url)
    engine = ScriptedEngine(wire, name)
    await engine.appear()
    try:
        yield engine
    finally:
        await wire.close()


@asynccontextmanager
async def one_gateway(
    url: str, folder: Path, settings: Mapping[str, object] | None = None
) -> AsyncGenerator[tuple[GatewayProgram, ScriptedEngine, str]]:
    """A gateway with its settings, ready; an engine behind it; a key."""
    async with gateway_program(url, folder / "a", settings) as program, engine_at(url) as engine:
        await program.ready()
        yield program, engine, await make_key(url)


@asynccontextmanager
async def two_gateways(
    url: str,
    folder: Path,
    *,
    a: Mapping[str, object] | None = None,
    b: Mapping[str, object] | None = None,
) -> AsyncGenerator[tuple[GatewayProgram, GatewayProgram, ScriptedEngine, str]]:
    """Two gateways with their settings, ready; an engine behind them; a key for both."""
    async with (
        gateway_program(url, folder / "a", a) as first,
        gateway_program(url, folder / "b", b) as second,
        engine_at(url) as engine,
    ):
        await first.ready()
        await second.ready()
        yield first, second, engine, await make_key(url)


def client(program: GatewayProgram, key: str) -> httpx.AsyncClient:
    """An HTTP client with a key."""
    return httpx.AsyncClient(
        base_url=program.url, headers={"Authorization": f"Bearer {key}"}, timeout=60
    )


def body(**fields: Any) -> dict[str, Any]:
    """A completions request."""
    return {"model": MODEL, "prompt": "x", "max_tokens": 50, **fields}


async def until_told(lines: AsyncIterator[str], text: str) -> str:
    """Reads a stream until it has told a text; the cursor there."""
    told = cursor = ""
    while told != text:
        line = await anext(lines)
        if line.startswith("id: "):
            cursor = line.removeprefix("id: ")
        if line.startswith("data: "):
            told += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    return cursor


async def chunks(stream: httpx.Response | AsyncIterator[str]) -> list[Any]:
    """Data events of a stream, or of the rest of its lines; ``[DONE]`` as text."""
    found: list[Any] = []
    async for line in stream.aiter_lines() if isinstance(stream, httpx.Response) else stream:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def text_of(found: list[Any]) -> str:
    """Text of a stream's chunks."""
    return "".join(chunk["choices"][0]["text"] for chunk in found if chunk != "[DONE]")


async def test_a_completion_streams_through_a_real_server(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with one_gateway(own_server.url, tmp_path) as (program, eng, key):
        async with client(program, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                assert response.status_code == 200
                [claimed] = await eng.claim()
                await eng.say(claimed, "Hello ")
                await eng.say(claimed, "world", finish=FinishReason.LENGTH)
                assert await eng.end(claimed, {0: FinishReason.LENGTH}, since=[6])
                found = await chunks(response)
            assert text_of(found) == "Hello world"
            assert found[-1] == "[DONE]"
            request_id = found[0]["id"]
            state = (await http.get(f"/v1/requests/{request_id}")).json()
            assert state["status"] == "finished"


async def test_without_a_key_nothing_but_health_answers(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with gateway_program(own_server.url, tmp_path / "a") as program:
        await program.ready()
        async with httpx.AsyncClient(base_url=program.url) as http:
            assert (await http.get("/health/ready")).status_code == 200
            assert (await http.get("/v1/models")).status_code == 401
        async with grpc.aio.insecure_channel(f"127.0.0.1:{program.grpc_port}") as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            inference: Any = InferenceStub(channel)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in inference.Generate(GenerateRequest(model=MODEL)):
                    pass
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_stream_is_taken_up_at_another_gateway_where_it_was_left(
    own_server: RedisServer, tmp_path: Path
) -> None:
    keep = {"resume_grace_s": 30}
    async with two_gateways(own_server.url, tmp_path, a=keep, b=keep) as (first, second, eng, key):
        async with client(first, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                [claimed] = await eng.claim()
                await eng.say(claimed, "once upon ")
                cursor = await until_told(response.aiter_lines(), "once upon ")
        await eng.say(claimed, "a time", log=False)  # nobody reads
        async with client(second, key) as http:
            path = f"/v1/requests/{claimed.record.id}/events"
            async with http.stream("GET", path, params={"after": cursor}) as response:
                assert response.status_code == 200
                await eng.obey_attach(claimed)
                await eng.say(claimed, "!", finish=FinishReason.LENGTH)
                found = await chunks(response)
        assert text_of(found) == "a time!"
        assert found[-1] == "[DONE]"


async def test_sigterm_lets_streams_end_and_refuses_new_calls(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with one_gateway(own_server.url, tmp_path) as (program, eng, key):
        async with client(program, key) as http, client(program, key) as idle:
            await idle.get("/health/live")  # a keep-alive connection that nobody uses
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                [claimed] = await eng.claim()
                await eng.say(claimed, "a")
                program.terminate()

                async def refused() -> bool:
                    return (await idle.get("/health/ready")).status_code == 503

                await eventually(refused)
                late = await http.post("/v1/completions", json=body())
                assert late.status_code == 503
                assert late.json()["error"]["code"] == "draining"
                await eng.say(claimed, "b", finish=FinishReason.LENGTH)
                found = await chunks(response)
            assert text_of(found) == "ab"
            assert found[-1] == "[DONE]"
            assert await program.wait() == 0


async def test_streams_that_outlast_the_drain_are_read_on_at_another_gateway(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with two_gateways(own_server.url, tmp_path, a={"drain_s": 0.3}) as (
        first,
        second,
        eng,
        key,
    ):
        async with client(first, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                [claimed] = await eng.claim()
                await eng.say(claimed, "once upon ")
                lines = response.aiter_lines()
                await until_told(lines, "once upon ")
                first.terminate()
                found = await chunks(lines)
        assert await first.wait() == 0
        assert text_of(found[:-1]) == ""
        error = found[-1]["error"]
        assert error["code"] == "draining"
        assert error["resume"]["after"] == "10"
        await eng.wire.reap(MODEL)  # it is not taken for stranded
        await eng.say(claimed, "a ", log=False)  # for a reader that is gone, and in no log yet
        async with client(second, key) as http:
            async with http.stream("GET", error["resume"]["path"]) as response:
                assert response.status_code == 200
                await eng.obey_attach(claimed)
                await eng.say(claimed, "time", finish=FinishReason.LENGTH)
                assert text_of(await chunks(response)) == "a time"


async def test_a_call_that_waits_is_handed_over_too(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with two_gateways(own_server.url, tmp_path, a={"drain_s": 0.3}) as (
        first,
        second,
        eng,
        key,
    ):
        async with client(first, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                first.terminate()
                [last] = await chunks(response)
        assert await first.wait() == 0
        async with client(second, key) as http:
            async with http.stream("GET", last["error"]["resume"]["path"]) as response:
                [claimed] = await eng.claim()
                assert claimed.record.gateway.startswith("gateway-")
                await eng.say(claimed, "later", finish=FinishReason.LENGTH)
                assert text_of(await chunks(response)) == "later"


async def test_a_drained_call_that_is_no_stream_is_cancelled_and_may_be_repeated(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with one_gateway(own_server.url, tmp_path, {"drain_s": 0.3}) as (program, eng, key):
        async with client(program, key) as http:
            call = asyncio.create_task(http.post("/v1/completions", json=body()))
            [claimed] = await eng.claim()
            program.terminate()
            answer = await call
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "draining"
        assert answer.headers["retry-after"] == "1"
        assert (await eng.await_mark(claimed)).reason == FinishReason.CANCELLED
        assert await program.wait() == 0


async def test_without_a_hand_over_drained_streams_end_with_an_error_and_exit_is_clean(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with one_gateway(own_server.url, tmp_path, {"drain_s": 0.3, "handover_s": 0}) as (
        program,
        eng,
        key,
    ):
        async with client(program, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                [claimed] = await eng.claim()
                await eng.say(claimed, "a")
                program.terminate()
                found = await chunks(response)
        assert found[-1]["error"]["code"] == "draining"
        assert "[DONE]" not in found
        assert await program.wait() == 0
        assert (await eng.await_mark(claimed)).reason == FinishReason.CANCELLED


async def test_redis_down_is_not_ready_but_alive_and_heals_by_itself(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with gateway_program(own_server.url, tmp_path / "a") as program:
        await program.ready()
        key = await make_key(own_server.url)
        async with client(program, key) as http:
            own_server.kill()

            async def unready() -> bool:
                return (await http.get("/health/ready")).status_code == 503

            await eventually(unready)
            assert (await http.get("/health/live")).status_code == 200
            answer = await http.post("/v1/completions", json=body())
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            own_server.start()

            async def ready() -> bool:
                return (await http.get("/health/ready")).status_code == 200

            await eventually(ready)
            async with engine_at(own_server.url) as eng:

                async def listed() -> bool:
                    return MODEL in (await http.get("/v1/models")).text

                await eventually(listed)
                call = asyncio.create_task(http.post("/v1/completions", json=body()))
                [claimed] = await eng.claim()
                await eng.say(claimed, "back", finish=FinishReason.LENGTH)
                assert (await call).json()["choices"][0]["text"] == "back"
        assert program.log.count("\n") < 100


async def test_a_request_that_the_server_lost_goes_on_without_deciding_a_token_again(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with one_gateway(own_server.url, tmp_path, {"silence_check_s": 0.3}) as (
        program,
        eng,
        key,
    ):
        async with client(program, key) as http:
            async with http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                [claimed] = await eng.claim()
                await eng.say(claimed, "abc")
                lines = response.aiter_lines()
                await until_told(lines, "abc")
                own_server.flush()
                await eng.appear()
                [again] = await eng.claim()
                assert again.record.id == claimed.record.id
                assert again.attempt > claimed.attempt
                assert [list(tokens) for tokens in again.delivered] == [
                    eng.said[(claimed.record.id, 0)]
                ]
                await eng.say(again, "def", finish=FinishReason.LENGTH)
                assert text_of(await chunks(lines)) == "def"


async def test_an_unsuitable_server_is_refused_with_the_reason(tmp_path: Path) -> None:
    with redis_server("valkey", "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as bad:
        async with gateway_program(bad.url, tmp_path / "a") as program:
            assert await program.wait() == 2
            assert "maxmemory-policy" in program.log


async def test_a_request_can_be_cancelled_at_any_gateway(
    own_server: RedisServer, tmp_path: Path
) -> None:
    async with two_gateways(own_server.url, tmp_path) as (first, second, _, key):
        async with client(first, key) as here, client(second, key) as there:
            async with here.stream("POST", "/v1/completions", json=body(stream=True)) as response:
                await eventually(lambda: known(there, response))
                request_id = response.headers["x-request-id"]
                assert (await there.delete(f"/v1/requests/{request_id}")).status_code == 200
                found = await chunks(response)
            assert found[-1]["error"]["code"] == "cancelled"


async def known(http: httpx.AsyncClient, response: httpx.Response) -> bool:
    """Whether a gateway knows the request of a response."""
    request_id = response.headers["x-request-id"]
    return (await http.get(f"/v1/requests/{request_id}")).status_code == 200
