"""Builds the engine from its settings, once, and runs it until it is told to stop or fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
import sys
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TypeVar

from headrace_contracts.limits import BOOT_NONCE
from headrace_kit.clock import SystemClock
from headrace_kit.errors import SettingsError
from headrace_kit.lifecycle import Lifecycle, install_signals
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
from headrace_transport.connection import connect_engine
from headrace_transport.errors import ServerUnsuitable, TransportUnavailable
from headrace_transport.interface import EngineInfo, EngineWire
from headrace_transport.options import WireOptions

from headrace_engine import compiling
from headrace_engine.errors import EngineDied, EngineFailed, ModelRejected
from headrace_engine.host.base import Host, Served
from headrace_engine.host.process import CHILD, ProcessHost
from headrace_engine.host.threads import Load, ThreadHost
from headrace_engine.intake.admin import AdminServer, build_admin
from headrace_engine.intake.link import Link
from headrace_engine.intake.service import Intake, IntakeSettings
from headrace_engine.intake.validate import Bounds
from headrace_engine.loading import load_model, name_of, percent_log, publish_card
from headrace_engine.settings import (
    EngineSecrets,
    EngineSettings,
    check_settings,
    has_io_process,
)
from headrace_engine.threads import beside, in_thread, leave_if_busy

log = get_logger(__name__)
T = TypeVar("T")

_LAST_STEP_S = 2.0
"""Longest that each step of stopping may take once nothing is held."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the engine process, or ``compile``; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == [compiling.COMMAND]:
        return compiling.main(argv[1:])
    read = read_settings(
        EngineSettings,
        EngineSecrets,
        argv,
        description=__doc__,
        check=lambda settings, _hidden: check_settings(settings),
    )
    if read is None:
        return REFUSED
    loaded, hidden = read
    settings = loaded.settings
    configure_logging(service="engine", level=settings.log_level, format=settings.log_format)
    loaded.announce(log)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        code = runner.run(EngineProcess(settings, hidden).run())
    leave_if_busy(code)
    return code


class EngineProcess:
    """One engine process, from start to exit code."""

    def __init__(
        self,
        settings: EngineSettings,
        hidden: EngineSecrets,
        *,
        load: Load = load_model,
        command: Sequence[str] = CHILD,
    ) -> None:
        """``load`` brings the model; where the engine has a process of its own, ``command`` is
        what Python runs there, and does.
        """
        self._settings = settings
        self._hidden = hidden
        self._ready_file = ReadyFile(settings.ready_file)
        self._load = load
        self._command = command
        self._clock = SystemClock()
        self._registry = Registry("engine")
        self._tracing = Tracing()
        self._engine = process_id(settings.name)
        self._phase = "starting"
        self._intake: Intake | None = None
        self._stopping = asyncio.Event()
        self._grace_s = settings.drain_s

    # health, as the admin port shows it
    @property
    def alive(self) -> bool:
        """False once passes stand still with work resident."""
        return self._intake is None or self._intake.progress.alive

    @property
    def problems(self) -> list[str]:
        """Why no request can be served now."""
        if self._stopping.is_set():
            return ["draining"]
        if self._intake is None:
            return [self._phase]
        return self._intake.problems

    def exposition(self) -> tuple[bytes, str]:
        """Metrics as Prometheus text."""
        body = self._registry.exposition()
        if self._intake is not None and self._settings.metrics_vllm_names:
            body += self._intake.metrics.vllm_text(self._intake.model)
        return body, self._registry.content_type

    async def run(self) -> int:
        """Starts, serves, stops. What refuses to start says so in one line."""
        self._stopping = install_signals(asyncio.get_running_loop())
        log.info("engine.starting", engine=self._engine, pid=os.getpid())
        try:
            async with Lifecycle() as life:
                return await self._start_and_serve(life)
        except Stopped:
            log.info("engine.stopped", while_=self._phase)
            return OK
        except (ModelRejected, ServerUnsuitable, SettingsError) as error:
            log.error("engine.refused", reason=str(error))
            return REFUSED
        except Exception as error:  # the io thread's top frame: the process ends with its reason
            log.error("engine.failed", reason=str(error), exc_info=error)
            return FAILED

    async def _start_and_serve(self, life: Lifecycle) -> int:
        if self._settings.otlp_endpoint is not None:
            self._registry.start_otlp(self._settings.otlp_endpoint, self._settings.otlp_interval_s)
            life.push("metrics", partial(in_thread, "otlp", self._registry.close))
            self._tracing = Tracing.start(
                "engine",
                self._settings.otlp_endpoint,
                ratio=self._settings.trace_ratio,
                instance=self._engine,
            )
            life.push("traces", partial(in_thread, "otlp traces", self._tracing.close))
        admin = self._open_port()
        async with beside(admin.run()):
            wire = await self._while_running(self._connect())
            life.push("wire", wire.close)
            if self._settings.sole_name:
                await self._while_running(self._supersede(wire))
            host = self._make_host()
            life.push("engine", host.close)
            async with beside(self._beat_while_loading(wire)):
                served = await self._while_running(self._load_engine(host))
            await self._while_running(self._publish(wire, served))
            return await self._serve(wire, host, served, admin.port)

    def _open_port(self) -> AdminServer:
        host, port = self._settings.http_host, self._settings.http_port
        try:
            return AdminServer(build_admin(self), host, port)
        except OSError as error:
            raise SettingsError([f"http_host {host}, http_port {port}: {error}"]) from error

    async def _while_running(self, work: Coroutine[object, object, T]) -> T:
        return await unless_stopped(self._stopping, work)

    async def _connect(self) -> EngineWire:
        """The wire, checked. Waits for a server that is not there yet."""
        self._phase = "connecting to the server"
        link = Link(self._clock)
        access = Access.of(self._settings, self._hidden)
        while True:
            try:
                wire = await connect_engine(
                    self._settings.redis_url,
                    access=access,
                    options=WireOptions(resume_grace_ms=int(self._settings.resume_grace_s * 1000)),
                )
            except TransportUnavailable as error:
                await link.failed(error)
                continue
            for warning in wire.warnings:
                log.warning("wire.warning", warning=warning)
            return wire

    async def _supersede(self, wire: EngineWire) -> None:
        """Ends the leases of this process's predecessor, which is dead."""
        model = self._settings.model_name or name_of(self._settings.model)
        link = Link(self._clock)
        while True:
            try:
                ended = await wire.supersede(model, self._engine)
            except TransportUnavailable as error:
                await link.failed(error)
                continue
            if ended:
                log.warning("engine.supersedes", leases=ended)
            return

    def _make_host(self) -> Host:
        if has_io_process(self._settings):
            return ProcessHost(self._settings, self._engine, self._command)
        return ThreadHost(self._settings, self._load, self._clock, self._engine)

    async def _load_engine(self, host: Host) -> Served:
        self._phase = "loading"
        say = percent_log()

        def percent(value: int) -> None:
            self._phase = f"loading {value} %"
            say(value)

        served = await host.load(percent)
        log.info(
            "model.loaded",
            model=served.name,
            architecture=served.shape.architecture,
            context_tokens=served.settings.session_tokens,
            pool_tokens=served.settings.pool_tokens,
        )
        return served

    async def _beat_while_loading(self, wire: EngineWire) -> None:
        ttl_ms = self._settings.lease_ms
        model = self._settings.model_name or name_of(self._settings.model)
        info = EngineInfo(self._engine, model, "loading", 0, 0, 0, 0)
        while True:
            with contextlib.suppress(TransportUnavailable):
                await wire.beat_engine(info, ttl_ms=ttl_ms)
            await asyncio.sleep(ttl_ms / 3000)

    async def _publish(self, wire: EngineWire, served: Served) -> None:
        self._phase = "publishing the model card"
        link = Link(self._clock)
        while True:
            try:
                await self._put_card(wire, served)
            except TransportUnavailable as error:
                await link.failed(error)
            else:
                return

    async def _put_card(self, wire: EngineWire, served: Served) -> None:
        created_s = self._clock.wall_ms() // 1000
        await publish_card(wire, served, served.settings, created_s=created_s)

    async def _serve(self, wire: EngineWire, host: Host, served: Served, port: int) -> int:
        intake = self._make_intake(wire, host, served)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(intake.run(), name="intake")
            engine = group.create_task(host.run(intake.take), name="engine")
            stopping = group.create_task(self._stopping.wait())
            await intake.keeper.ready()
            self._intake = intake
            self._announce(port)
            await asyncio.wait({engine, stopping}, return_when=asyncio.FIRST_COMPLETED)
            failure = await self._stop(intake, host, engine)
            for task in (running, stopping):
                task.cancel()
        await _within(_LAST_STEP_S, wire.leave_engine(intake.keeper.info()))
        if failure is not None:
            raise EngineFailed(f"{type(failure).__name__}: {failure}") from failure
        log.info("engine.stopped")
        return OK

    async def _stop(
        self, intake: Intake, host: Host, engine: asyncio.Task[BaseException | None]
    ) -> BaseException | None:
        """Drains, or cleans up after an engine that ended by itself. Its error, if any."""
        self._ready_file.remove()
        if not engine.done():
            await _unless_done(engine, intake.drain(self._grace_s))
        if engine.done():
            failure = engine.result()
            await intake.abandon(told=not isinstance(failure, EngineDied))
            return failure or EngineFailed("the engine ended by itself")
        host.door.close()
        try:
            async with asyncio.timeout(_LAST_STEP_S):
                return await asyncio.shield(engine)
        except TimeoutError:
            log.error("engine.did_not_stop", seconds=_LAST_STEP_S)
            engine.cancel()
            return None

    def _make_intake(self, wire: EngineWire, host: Host, served: Served) -> Intake:
        def drain(grace_s: float | None) -> None:
            self._grace_s = self._settings.drain_s if grace_s is None else grace_s
            self._stopping.set()

        return Intake(
            wire=wire,
            door=host.door,
            engine=self._engine,
            bounds=Bounds(
                model=served.name,
                vocabulary=served.shape.vocabulary,
                context_tokens=served.settings.session_tokens,
            ),
            settings=IntakeSettings(
                slots=served.settings.max_batch,
                max_waiting=served.settings.max_waiting,
                lease_ms=self._settings.lease_ms,
                stall_s=self._settings.stall_s,
                buffer_tokens=self._settings.buffer_tokens,
            ),
            snapshot=host.snapshot,
            registry=self._registry,
            clock=self._clock,
            put_card=partial(self._put_card, wire, served),
            drain=drain,
            tracing=self._tracing,
        )

    def _announce(self, port: int) -> None:
        log.info("engine.ready", engine=self._engine, http_port=port)
        self._ready_file.write({"http_port": port, "engine": self._engine})


def process_id(name: str | None) -> str:
    """This process's id: its name and a boot nonce, so that old entries never reach a new process."""
    base = re.sub(r"[^A-Za-z0-9._-]", "-", name or socket.gethostname())[:96]
    return f"{base}-{secrets.token_hex(BOOT_NONCE // 2)}"


async def _unless_done(
    engine: asyncio.Task[BaseException | None], work: Coroutine[object, object, None]
) -> None:
    """Returns when ``work`` is done, or the engine is: then ``work`` is cancelled."""
    async with asyncio.TaskGroup() as group:
        working = group.create_task(work)
        await asyncio.wait({engine, working}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()


async def _within(
    seconds: float, work: asyncio.Future[None] | Coroutine[object, object, None]
) -> None:
    """Waits for a last step, and goes on without it: the process must end."""
    with contextlib.suppress(TimeoutError, TransportUnavailable):
        async with asyncio.timeout(seconds):
            await work
