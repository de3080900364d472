"""The gRPC server: inference, health, reflection. Next: headrace_gateway.rpc.servicer"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from headrace_contracts.pb import inference_pb2_grpc
from headrace_kit.log import get_logger
from headrace_kit.traces import Tracing

from headrace_gateway.auth.keys import Authenticator
from headrace_gateway.inference.readiness import Readiness
from headrace_gateway.inference.service import InferenceService
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rpc.decoding import Decoding
from headrace_gateway.rpc.guard import Guard
from headrace_gateway.rpc.servicer import SERVICE, InferenceServicer
from headrace_gateway.settings import GatewaySettings

log = get_logger(__name__)

HEALTH_EVERY_S: Final = 1.0


class _Health(Protocol):
    """The health servicer, which has no types of its own."""

    async def set(self, service: str, status: int) -> None: ...

    async def enter_graceful_shutdown(self) -> None: ...


class RpcServer:
    """Started once, stopped once."""

    def __init__(
        self,
        service: InferenceService,
        auth: Authenticator,
        metrics: GatewayMetrics,
        readiness: Readiness,
        settings: GatewaySettings,
        tracing: Tracing | None = None,
    ) -> None:
        self._readiness = readiness
        self._settings = settings
        self._health = cast(_Health, health.aio.HealthServicer())  # pyright: ignore
        self._server = grpc.aio.server(
            interceptors=[Guard(auth, metrics), Decoding(SERVICE)],
            options=[
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.so_reuseport", 0),
            ],
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(  # pyright: ignore[reportUnknownMemberType]
            InferenceServicer(
                service,
                auth,
                metrics,
                max_deadline_s=settings.max_deadline_s,
                tracing=tracing or Tracing(),
            ),
            self._server,
        )
        health_pb2_grpc.add_HealthServicer_to_server(  # pyright: ignore[reportUnknownMemberType]
            self._health, self._server
        )
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )
        self._port = 0

    @property
    def port(self) -> int:
        """Where it listens, once started."""
        return self._port

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listens, over TLS with ``credentials``. Raises ``OSError`` when the port is taken."""
        address = f"{self._settings.grpc_host}:{self._settings.grpc_port}"
        try:
            if credentials is None:
                self._port = self._server.add_insecure_port(address)
            else:
                self._port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {address}: {error}") from error
        await self._server.start()

    async def report_health(self) -> None:
        """Keeps the health service's answer true; for ever."""
        told: bool | None = None
        while True:
            report = await self._readiness.report()
            if report.ready is not told:
                status = (
                    health_pb2.HealthCheckResponse.SERVING
                    if report.ready
                    else health_pb2.HealthCheckResponse.NOT_SERVING
                )
                for name in ("", SERVICE):
                    await self._health.set(name, status)
                told = report.ready
            await asyncio.sleep(HEALTH_EVERY_S)

    async def not_serving(self) -> None:
        """Says at once that no more calls should come, whatever readiness becomes."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and ends those that run after ``grace_s``."""
        await self._server.stop(grace_s)
