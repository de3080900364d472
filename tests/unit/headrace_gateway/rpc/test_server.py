"""The gRPC API through a real server and client, over the wire in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.inference_pb2 import (
    CancelRequest,
    ChatMessage,
    ChatPrompt,
    GenerateEvent,
    GenerateRequest,
    ListModelsRequest,
    TokenPrompt,
)
from headrace_contracts.pb.inference_pb2_grpc import InferenceStub
from headrace_contracts.pb.queue_pb2 import RowLogprobs
from headrace_gateway.auth.keys import Authenticator, KeyStore
from headrace_gateway.rpc.server import SERVICE, RpcServer
from headrace_kit.clock import SystemClock
from headrace_transport.memory import MemoryGatewayWire
from support.wire import MODEL, Gateway, Stack, eventually, toy_ids

PEPPER = b"0123456789abcdef"


class Served:
    """A started gRPC server with its stack, and a client with a key."""

    def __init__(self, stack: Stack, gateway: Gateway, rpc: RpcServer, key: str) -> None:
        self.stack = stack
        self.gateway = gateway
        self.rpc = rpc
        self.key = key
        self.channel: Any = grpc.aio.insecure_channel(f"127.0.0.1:{rpc.port}")
        self.inference: Any = InferenceStub(self.channel)
        self.health: Any = health_pb2_grpc.HealthStub(self.channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What opens the door."""
        return (("authorization", f"Bearer {self.key}"),)

    def generate(self, timeout: float | None = 20, **fields: Any) -> Any:
        """A running Generate call."""
        request = GenerateRequest(model=MODEL, **fields)
        return self.inference.Generate(request, metadata=self.metadata, timeout=timeout)


@asynccontextmanager
async def served(**settings: Any) -> AsyncGenerator[Served]:
    """The server, started and stopped."""
    stack = Stack()
    gateway = stack.gateway(grpc_port=0, **settings)
    wire = MemoryGatewayWire(stack.broker)
    token, _ = await KeyStore(wire, PEPPER, SystemClock()).create(name="test")
    auth = Authenticator(wire, PEPPER, SystemClock(), cache_s=0)
    async with gateway.running() as service:
        await stack.engine.appear()
        rpc = RpcServer(service, auth, gateway.metrics, gateway.readiness, gateway.settings)
        await rpc.start()
        it = Served(stack, gateway, rpc, token)
        try:
            yield it
        finally:
            await it.channel.close()
            await rpc.stop(0)


async def events_of(call: Any) -> list[GenerateEvent]:
    """All events of a call."""
    return [event async for event in call]


async def failure_of(call: Any) -> Any:
    """The error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events_of(call)
    return caught.value


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
        before_ms = SystemClock().wall_ms()
        call = it.generate(timeout=0.5, text="x")
        [claimed] = await it.stack.engine.claim()
        assert before_ms < claimed.record.deadline_ms <= SystemClock().wall_ms() + 500
        error = await failure_of(call)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await it.stack.engine.await_mark(claimed)
        await eventually(lambda: closed(it.gateway))


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


@pytest.mark.parametrize("header", [None, "Bearer wrong-wrong", "Basic abc", "Bearer"])
async def test_without_a_good_key_only_health_answers(header: str | None) -> None:
    async with served() as it:
        metadata = None if header is None else (("authorization", header),)
        calls = (
            it.inference.ListModels(ListModelsRequest(), metadata=metadata),
            it.inference.Cancel(CancelRequest(id="x"), metadata=metadata),
            it.channel.unary_unary("/headrace.v1.Inference/Dummy")(b"", metadata=metadata),
            it.channel.unary_unary("/other.Service/Method")(b"", metadata=metadata),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        generate = it.inference.Generate(GenerateRequest(model=MODEL), metadata=metadata)
        assert (await failure_of(generate)).code() is grpc.StatusCode.UNAUTHENTICATED
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(it.channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        asked = stub.ServerReflectionInfo(iter([listing]), metadata=metadata)
        assert (await failure_of(asked)).code() is grpc.StatusCode.UNAUTHENTICATED
        await it.health.Check(health_pb2.HealthCheckRequest())


async def test_reflection_lists_the_services_for_a_key() -> None:
    async with served() as it:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(it.channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = stub.ServerReflectionInfo(iter([listing]), metadata=it.metadata)
        names = {
            service.name
            async for answer in answers
            for service in answer.list_services_response.service
        }
        assert {SERVICE, "grpc.health.v1.Health"} <= names


async def test_health_follows_readiness() -> None:
    serving = health_pb2.HealthCheckResponse.SERVING
    async with served() as it:
        reporting = asyncio.create_task(it.rpc.report_health())
        request = health_pb2.HealthCheckRequest(service=SERVICE)

        async def status() -> int:
            try:
                return (await it.health.Check(request)).status
            except grpc.aio.AioRpcError:
                return 0

        async def is_serving() -> bool:
            return await status() == serving

        async def is_not_serving() -> bool:
            return await status() == health_pb2.HealthCheckResponse.NOT_SERVING

        await eventually(is_serving)
        it.stack.broker.up = False
        await eventually(is_not_serving)
        it.stack.broker.up = True
        await eventually(is_serving)
        await it.rpc.not_serving()
        assert await is_not_serving()
        reporting.cancel()
        await asyncio.wait([reporting])


async def test_a_taken_port_is_an_os_error() -> None:
    async with served() as it:
        taken = it.gateway.settings.model_copy(update={"grpc_port": it.rpc.port})
        auth = Authenticator(MemoryGatewayWire(it.stack.broker), PEPPER, SystemClock(), cache_s=0)
        second = RpcServer(
            it.gateway.service, auth, it.gateway.metrics, it.gateway.readiness, taken
        )
        with pytest.raises(OSError, match="cannot listen"):
            await second.start()
        await second.stop(0)


async def closed(gateway: Gateway) -> bool:
    """Whether the gateway has no open call left."""
    return gateway.value("headrace_gateway_requests_open") == 0


async def queued(stack: Stack) -> bool:
    """Whether a request waits."""
    return not await stack.queue_is_empty()
