"""Nothing answers without a key but health, not even what does not exist."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from headrace_contracts.pb.inference_pb2 import (
    CancelRequest,
    GenerateRequest,
    ListModelsRequest,
)
from headrace_gateway.rpc.guard import metadata_value
from support.rpc import failure_of, served
from support.wire import MODEL


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
        told = {"method": "unmatched", "status": "UNAUTHENTICATED"}
        assert it.gateway.value("headrace_gateway_grpc_requests_total", **told) == 6


async def test_with_a_key_what_does_not_exist_is_unimplemented() -> None:
    async with served() as it:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await it.channel.unary_unary("/other.Service/Method")(b"", metadata=it.metadata)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_the_first_value_of_a_key_counts() -> None:
    metadata = (("a", "1"), ("b", b"2"), ("a", "3"))
    assert metadata_value(metadata, "a") == "1"
    assert metadata_value(metadata, "b") == b"2"
    assert metadata_value(None, "a") is None
