"""The engine in a process of its own: no Python of io takes the interpreter from a pass."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from typing import Final

from headrace_kit.log import get_logger

from headrace_engine.errors import EngineDied, EngineDraining, EngineFailed
from headrace_engine.host.base import HostDoor, Served
from headrace_engine.host.messages import (
    pack_start,
    unpack_ended,
    unpack_loading,
    unpack_refused,
    unpack_served,
)
from headrace_engine.loading import Percent
from headrace_engine.settings import EngineSettings
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.packed import (
    Kind,
    Message,
    Unpacker,
    pack,
    pack_cancel,
    pack_request,
    unpack_outputs,
)
from headrace_engine.state.request import Request
from headrace_engine.state.shared_cell import SharedReader, shared_memory

log = get_logger(__name__)

CHILD: Final = ("-m", "headrace_engine.host.child")
"""What Python runs as the engine's process; two descriptors follow."""
_END_S: Final = 8.0
"""Longest wait for the device to be freed before the process is killed."""


class ProcessHost(asyncio.Protocol):
    """The engine's process, as the io process sees it: its parent, which outlives it.

    When the child is gone, whatever ended it, ``run`` returns. When this process is gone, the
    child finds its pipe closed and ends.
    """

    def __init__(
        self, settings: EngineSettings, engine: str, command: Sequence[str] = CHILD
    ) -> None:
        """``engine`` is this process's id."""
        self._settings = settings
        self._engine = engine
        self._command = command
        self._percent: Percent = lambda _: None
        self._hand_over: Callable[[list[PassOutputs]], None] = lambda _: None
        self._process: Process | None = None
        self._door: _SentDoor | None = None
        self._snapshot: SharedReader | None = None
        self._unpacker = Unpacker()
        self._served: Served | None = None
        self._error: Exception | None = None
        """What the engine said that it ended with."""
        self._loaded = asyncio.Event()
        """Loaded, or over."""
        self._over = asyncio.Event()
        """The engine said that it ended, or its process is gone."""
        self._said = False
        """It said so, and frees its device now."""

    async def load(self, percent: Percent) -> Served:
        """Starts the process, which loads."""
        self._percent = percent
        await self._start()
        await self._loaded.wait()
        if self._error is not None:
            raise self._error
        if self._served is None:
            raise await self._death()
        return self._served

    @property
    def pid(self) -> int | None:
        """Of the engine's process, once it was started."""
        return None if self._process is None else self._process.pid

    @property
    def door(self) -> HostDoor:
        """What is said to it is sent."""
        assert self._door is not None, "the engine is not loaded"
        return self._door

    def snapshot(self) -> ScheduleMetrics:
        """From memory that the engine writes in each pass."""
        assert self._snapshot is not None, "the engine is not loaded"
        return self._snapshot.get()

    async def run(self, hand_over: Callable[[list[PassOutputs]], None]) -> BaseException | None:
        """Waits for the engine's end; outputs are handed over as they come."""
        self._hand_over = hand_over
        await self._over.wait()
        return self._error if self._said else await self._death()

    async def close(self) -> None:
        """Waits for the process, which frees the device; kills one that does not end."""
        process = self._process
        if process is None:
            return
        if not self._said:  # whatever it does is not wanted any more
            _kill(process)
        if await _exit_code(process, _END_S) is None:
            log.error("engine.killed", engine_pid=process.pid, waited_s=_END_S)
            _kill(process)
            await process.wait()

    async def _start(self) -> None:
        memory = shared_memory()
        ours, theirs = socket.socketpair()
        try:
            self._snapshot = SharedReader(memory)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, *self._command, str(theirs.fileno()), str(memory)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
            )
        finally:
            os.close(memory)
            theirs.close()
        log.info("engine.process", engine_pid=self._process.pid)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        transport.write(pack_start(self._settings, self._engine))
        self._door = _SentDoor(transport)

    async def _death(self) -> EngineDied:
        """Why a process is gone that did not say so."""
        assert self._process is not None
        code = await _exit_code(self._process, _END_S)
        if code is None:
            return EngineDied("the engine's process closed its pipe")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return EngineDied(f"the engine's process died: {how}")

    # what the event loop calls

    def data_received(self, data: bytes) -> None:
        """Bytes of the engine. Passes that came together are handed over together."""
        outputs: list[PassOutputs] = []
        for message in self._unpacker.feed(data):
            if message.kind is Kind.OUTPUTS:
                outputs.append(unpack_outputs(message))
            else:
                self._note(message)
        if outputs:
            self._hand_over(outputs)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process is gone, or going."""
        self._finish()

    def _note(self, message: Message) -> None:
        match message.kind:
            case Kind.LOADING:
                self._percent(unpack_loading(message))
            case Kind.READY:
                self._served = unpack_served(message)
                self._loaded.set()
            case Kind.REFUSED:
                self._error, self._said = unpack_refused(message), True
                self._finish()
            case Kind.ENDED:
                reason = unpack_ended(message)
                self._error = None if reason is None else EngineFailed(reason)
                self._said = True
                self._finish()
            case _:
                raise AssertionError(f"{message.kind.name} is not for io")

    def _finish(self) -> None:
        if self._door is not None:
            self._door.closed = True
        self._loaded.set()
        self._over.set()


class _SentDoor:
    """The engine's door at this end of the pipe."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self.closed = False

    def push(self, request: Request) -> None:
        if self.closed:
            raise EngineDraining("the engine takes no more requests")
        self._send(pack_request(request))

    def cancel(self, cancel: Cancel) -> None:
        self._send(pack_cancel(cancel))

    def close(self) -> None:
        self.closed = True
        self._send(pack(Kind.CLOSE))

    def _send(self, data: bytes) -> None:
        if not self._transport.is_closing():  # to an engine that is gone nothing can be said
            self._transport.write(data)


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


async def _exit_code(process: Process, seconds: float) -> int | None:
    """None: it has not ended by then."""
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        return None
