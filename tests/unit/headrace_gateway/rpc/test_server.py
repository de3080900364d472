"""The gRPC server around the methods: health, reflection, ports."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from headrace_gateway.auth.keys import Authenticator
from headrace_gateway.rpc.server import RpcServer
from headrace_gateway.rpc.servicer import SERVICE
from headrace_kit.clock import SystemClock
from headrace_transport.memory import MemoryGatewayWire
from support.rpc import PEPPER, served
from support.waiting import eventually


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
