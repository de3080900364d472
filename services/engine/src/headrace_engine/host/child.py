"""The engine's process: loads, runs the loop on its main thread, and tells io through a pipe.

``python -m headrace_engine.host.child PIPE MEMORY``: two descriptors that the io process, which
starts this one, passes on. Started afresh, never forked: nothing of CUDA exists before.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

from headrace_kit.clock import SystemClock
from headrace_kit.errors import SettingsError
from headrace_kit.log import configure_logging, get_logger
from headrace_kit.process import FAILED, OK, REFUSED

from headrace_engine.core import Core, build_core, end_journal
from headrace_engine.errors import EngineDraining, EngineFailed, ModelRejected
from headrace_engine.host.base import Served
from headrace_engine.host.messages import (
    pack_ended,
    pack_loading,
    pack_refused,
    pack_served,
    unpack_start,
)
from headrace_engine.host.threads import Load
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loading import load_model
from headrace_engine.loop.garbage import Garbage
from headrace_engine.settings import EngineSettings
from headrace_engine.state.mailbox import NewestCell
from headrace_engine.state.packed import Kind, Message, unpack_cancel, unpack_request
from headrace_engine.state.pipe import Pipe, PipedOutputs
from headrace_engine.state.shared_cell import SharedCell

log = get_logger(__name__)

_LAST_STEP_S: Final = 2.0
"""Longest that the loop may take to end once io is gone, and the last messages to leave."""


def main(argv: Sequence[str], load: Load = load_model) -> int:
    """Runs the engine until it ends, or io does; returns its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # They are for the io process, which then says what to do. A terminal sends them to both.
        signal.signal(number, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=int(argv[0])))
    messages = pipe.receive()
    start = next(messages, None)
    if start is None:
        return FAILED
    settings, engine = unpack_start(start)
    configure_logging(service="engine", level=settings.log_level, format=settings.log_format)
    return _EngineMain(settings, engine, pipe, int(argv[1]), load).run(messages)


class _EngineMain:
    """Everything below io, in this process."""

    def __init__(
        self, settings: EngineSettings, engine: str, pipe: Pipe, memory: int, load: Load
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._pipe = pipe
        self._memory = memory
        self._load = load
        self._door: NewestCell[EngineGateway | None] = NewestCell(None)
        self._io_gone = threading.Event()

    def run(self, messages: Iterator[Message]) -> int:
        """The engine thread is this one."""
        for name, body in (
            ("backlog", self._pipe.send_backlog),
            ("door", lambda: self._listen(messages)),
        ):
            threading.Thread(target=body, name=name, daemon=True).start()
        try:
            core = self._make_core()
        except (ModelRejected, SettingsError) as error:
            return self._leave(REFUSED, pack_refused(error))
        except (
            Exception
        ) as error:  # the process's top frame while it loads: io ends with its reason
            log.error("engine.load_failed", reason=str(error), exc_info=error)
            return self._leave(FAILED, pack_ended(error))
        return self._serve(core)

    def _make_core(self) -> Core:
        def percent(value: int) -> None:
            self._pipe.send(pack_loading(value))

        model = self._load(self._settings, percent)
        core = build_core(self._settings, model, SystemClock(), PipedOutputs(self._pipe))
        core.loop.metrics = SharedCell(core.loop.metrics.get(), self._memory)
        core.loop.garbage = Garbage()
        self._door.put(core.door)
        return core

    def _serve(self, core: Core) -> int:
        model = core.model
        self._pipe.send(
            pack_served(Served(model.name, model.shape, model.tokenizer, core.settings))
        )
        failure: EngineFailed | None = None
        try:
            core.loop.run()
        except EngineFailed as error:
            failure = error
            log.error("engine.thread_failed", reason=str(error), exc_info=error)
        self._pipe.send(pack_ended(failure))
        end_journal(core, self._settings, self._engine, failed=failure is not None)
        core.executor.close()
        return self._leave(OK if failure is None and not self._io_gone.is_set() else FAILED)

    def _leave(self, code: int, *last: bytes) -> int:
        for message in last:
            self._pipe.send(message)
        self._pipe.close(_LAST_STEP_S)
        return code

    def _listen(self, messages: Iterator[Message]) -> None:
        """Body of the door's thread: does what io says, until io is gone, and the process with it."""
        try:
            self._hear(messages)
        except Exception as error:  # the thread's top frame: nobody could tell this engine anything
            log.error("engine.door_failed", reason=str(error), exc_info=error)
        finally:
            sys.stderr.flush()
            os._exit(FAILED)

    def _hear(self, messages: Iterator[Message]) -> None:
        for message in messages:
            door = self._door.get()
            assert door is not None, "nothing is said to an engine that is not loaded"
            _obey(door, message)
        self._io_gone.set()
        door = self._door.get()
        if door is not None:  # what runs ends here, and goes on elsewhere once its lease is over
            log.error("engine.io_gone")
            door.close()
            time.sleep(_LAST_STEP_S)  # the main thread ends the process before


def _obey(door: EngineGateway, message: Message) -> None:
    match message.kind:
        case Kind.PUSH:
            try:
                door.push(unpack_request(message))
            except EngineDraining:
                return  # the loop has ended by itself: io finds that out, and hands it back
        case Kind.CANCEL:
            door.cancel(unpack_cancel(message))
        case Kind.CLOSE:
            door.close()
        case _:
            raise AssertionError(f"{message.kind.name} is not for an engine")


def leave(code: int) -> NoReturn:
    """Ends the process without meeting a dying interpreter: a library's thread may be at work."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
