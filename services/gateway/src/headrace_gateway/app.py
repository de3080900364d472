"""Builds the gateway from its settings, once, and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fastapi import FastAPI
from headrace_kit.clock import SystemClock
from headrace_kit.errors import SettingsError
from headrace_kit.lifecycle import install_signals
from headrace_kit.log import configure_logging, get_logger
from headrace_kit.metrics import Registry
from headrace_kit.process import (
    FAILED,
    OK,
    REFUSED,
    ReadyFile,
    Stopped,
    new_loop,
    read_settings,
    unless_stopped,
)
from headrace_kit.traces import Tracing
from headrace_transport.address import Access
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import ServerUnsuitable, TransportUnavailable
from headrace_transport.interface import GatewayWire
from headrace_transport.options import WireOptions
from pydantic import SecretStr

from headrace_gateway.auth.keys import Authenticator, KeyStore
from headrace_gateway.auth.tokens import MIN_PEPPER_BYTES
from headrace_gateway.auth.upkeep import KeyUpkeep
from headrace_gateway.http.api import build_api
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.readiness import Readiness
from headrace_gateway.inference.service import InferenceService
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.rpc.server import RpcServer
from headrace_gateway.server import HttpServer
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from headrace_gateway.text.pipeline import TextPipeline
from headrace_gateway.tls import Certificate

log = get_logger(__name__)

CONNECT_EVERY_S: Final = 1.0
LAST_WORDS_S: Final = 1.0
"""How long connections get after the drain to send their error event."""
LEAVE_S: Final = 0.5
"""How long saying good-bye to the server may take."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the gateway process; returns its exit code."""
    read = read_settings(
        GatewaySettings,
        GatewaySecrets,
        argv,
        description=__doc__,
        check=lambda _settings, hidden: pepper_of(hidden),
    )
    if read is None:
        return REFUSED
    loaded, hidden = read
    settings = loaded.settings
    configure_logging(service="gateway", level=settings.log_level, format=settings.log_format)
    loaded.announce(log)
    process = GatewayProcess(
        settings,
        pepper_of(hidden),
        access=Access.of(settings, hidden),
        initial_key=_revealed(hidden.initial_key),
    )
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(process.run())


def pepper_of(hidden: GatewaySecrets) -> bytes:
    """The pepper. Raises ``SettingsError`` where it is missing or too short."""
    if hidden.pepper is None:
        raise SettingsError(
            [
                "HEADRACE_GATEWAY_PEPPER is not set: without it no API key can be checked. Set "
                f"it, or HEADRACE_GATEWAY_PEPPER_FILE, to {MIN_PEPPER_BYTES} random bytes or more"
            ]
        )
    pepper = hidden.pepper.get_secret_value().strip().encode()
    if len(pepper) < MIN_PEPPER_BYTES:
        raise SettingsError(
            [
                f"HEADRACE_GATEWAY_PEPPER has {len(pepper)} bytes; at least {MIN_PEPPER_BYTES} "
                "are needed"
            ]
        )
    return pepper


@dataclass(frozen=True, slots=True)
class _Built:
    """What a gateway that has its server is made of."""

    service: InferenceService
    readiness: Readiness
    api: FastAPI
    rpc: RpcServer
    tracing: Tracing
    threads: ThreadPoolExecutor
    """For text: rendering and tokenizing."""


class GatewayProcess:
    """One gateway process, from start to exit code."""

    def __init__(
        self,
        settings: GatewaySettings,
        pepper: bytes,
        *,
        access: Access | None = None,
        initial_key: str | None = None,
    ) -> None:
        self._settings = settings
        self._pepper = pepper
        self._access = access
        self._initial_key = initial_key
        self._clock = SystemClock()
        self._registry = Registry("gateway")
        self._process = f"{settings.name}-{secrets.token_hex(4)}"
        self._ready_file = ReadyFile(settings.ready_file)

    async def run(self) -> int:
        """Starts, serves, drains. What refuses to start says so in one line."""
        stopping = install_signals(asyncio.get_running_loop())
        log.info("gateway.starting", gateway=self._process, pid=os.getpid())
        try:
            certificate = Certificate.of(self._settings.tls_cert_file, self._settings.tls_key_file)
            http = HttpServer(self._settings.http_host, self._settings.http_port)
            try:
                wire = await unless_stopped(stopping, self._connect())
                keys = KeyStore(wire, self._pepper, self._clock)
                upkeep = KeyUpkeep(keys, self._clock, initial=self._initial_key)
                with suppress(Stopped):
                    await unless_stopped(stopping, self._first_look(upkeep))
                await self._serve(wire, keys, upkeep, http, certificate, stopping)
            except Stopped:
                log.info("gateway.stopped_early")
            finally:
                http.stop()
        except (ServerUnsuitable, SettingsError, OSError) as error:
            log.error("gateway.refused", reason=str(error))
            return REFUSED
        except Exception:
            # The top frame: whatever broke, the process says so and ends.
            log.exception("gateway.failed")
            return FAILED
        log.info("gateway.stopped")
        return OK

    async def _connect(self) -> GatewayWire:
        """The wire, checked. Waits for a server that is not there yet."""
        said = False
        while True:
            try:
                wire = await connect_gateway(
                    self._settings.redis_url,
                    access=self._access,
                    options=WireOptions(
                        resume_grace_ms=int(self._settings.resume_grace_s * 1000),
                        sign_of_life_ms=int(self._settings.lease_s * 1000),
                    ),
                )
            except TransportUnavailable as error:
                if not said:
                    log.warning("gateway.waits_for_server", reason=str(error))
                said = True
                await asyncio.sleep(CONNECT_EVERY_S)
                continue
            for warning in wire.warnings:
                log.warning("wire.warning", warning=warning)
            return wire

    async def _first_look(self, keys: KeyUpkeep) -> None:
        """Makes the deployment's first key known. Waits for a server that has gone away."""
        said = False
        while True:
            try:
                await keys.adopt()
            except TransportUnavailable as error:
                if not said:
                    log.warning("gateway.waits_for_server", reason=str(error))
                said = True
                await asyncio.sleep(CONNECT_EVERY_S)
                continue
            except ValueError as error:
                raise SettingsError([f"HEADRACE_GATEWAY_INITIAL_KEY: {error}"]) from error
            return

    async def _serve(
        self,
        wire: GatewayWire,
        keys: KeyStore,
        upkeep: KeyUpkeep,
        http: HttpServer,
        certificate: Certificate | None,
        stopping: asyncio.Event,
    ) -> None:
        built = self._build(wire, keys)
        service, rpc = built.service, built.rpc
        if self._settings.otlp_endpoint is not None:
            self._registry.start_otlp(self._settings.otlp_endpoint, self._settings.otlp_interval_s)
        over = asyncio.Event()
        try:
            await rpc.start(None if certificate is None else certificate.grpc_credentials())
            async with asyncio.TaskGroup() as group:
                group.create_task(service.run(over), name="service")
                tls = None if certificate is None else certificate.context
                serving = http.serve(built.api, last_words_s=LAST_WORDS_S, tls=tls)
                group.create_task(serving, name="http")
                health = group.create_task(rpc.report_health(), name="grpc health")
                watch = group.create_task(_watched(certificate), name="certificate")
                keeping = group.create_task(upkeep.run(), name="keys")
                await http.started()
                gc.collect()
                gc.freeze()  # what start-up made lives as long as the process
                self._announce(http.port, rpc.port)
                await stopping.wait()
                await self._drain(service, built.readiness, rpc)
                health.cancel()
                watch.cancel()
                keeping.cancel()
                http.stop()
                await rpc.stop(LAST_WORDS_S)
                over.set()
        finally:
            with suppress(TimeoutError, TransportUnavailable):
                async with asyncio.timeout(LEAVE_S):
                    await wire.close()
            built.threads.shutdown(wait=False, cancel_futures=True)
            await asyncio.gather(
                asyncio.to_thread(self._registry.close), asyncio.to_thread(built.tracing.close)
            )

    def _build(self, wire: GatewayWire, keys: KeyStore) -> _Built:
        settings, metrics = self._settings, GatewayMetrics(self._registry)
        threads = ThreadPoolExecutor(settings.text_threads, thread_name_prefix="text")
        catalog = Catalog(
            wire,
            self._clock,
            make_text=TextPipeline.from_card,
            threads=threads,
            cache_s=settings.card_cache_s,
        )
        readiness = Readiness(wire, cold=catalog.cold)
        service = InferenceService(
            wire,
            catalog,
            settings,
            metrics,
            readiness,
            self._clock,
            threads=threads,
            process=self._process,
        )
        auth = Authenticator(wire, self._pepper, self._clock, cache_s=settings.key_cache_s)
        tracing = Tracing.start(
            "gateway",
            settings.otlp_endpoint,
            ratio=settings.trace_ratio,
            instance=self._process,
        )
        api = build_api(
            service=service,
            auth=auth,
            keys=keys,
            settings=settings,
            metrics=metrics,
            readiness=readiness,
            clock=self._clock,
            tracing=tracing,
        )
        rpc = RpcServer(service, auth, metrics, readiness, settings, tracing)
        return _Built(service, readiness, api, rpc, tracing, threads)

    async def _drain(self, service: InferenceService, readiness: Readiness, rpc: RpcServer) -> None:
        """Not ready at once; then no new calls; then the streams end, or are ended."""
        log.info("gateway.draining", drain_s=self._settings.drain_s)
        self._ready_file.remove()
        readiness.draining = True
        await rpc.not_serving()
        await asyncio.sleep(self._settings.drain_notice_s)
        await service.drain(self._settings.drain_s)

    def _announce(self, http_port: int, grpc_port: int) -> None:
        log.info("gateway.ready", gateway=self._process, http_port=http_port, grpc_port=grpc_port)
        self._ready_file.write(
            {"http_port": http_port, "grpc_port": grpc_port, "gateway": self._process}
        )


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


async def _watched(certificate: Certificate | None) -> None:
    if certificate is not None:
        await certificate.watch()
