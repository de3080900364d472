"""A core that runs in this process: its engine and signal threads, and the streams they feed.

Owner    whoever made it; ``push`` from any thread
Writes   the cell with the failure
Never    looks at tokens
Rules    request.one-terminal-status
Next     headrace_engine.api_stream
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from headrace_contracts.codes import Code
from headrace_kit.log import get_logger

from headrace_engine.api_stream import Stream, Streams
from headrace_engine.core import Core
from headrace_engine.errors import EngineDraining, EngineFailed
from headrace_engine.state.mailbox import NewestCell
from headrace_engine.state.request import Request, RequestHandle

_log = get_logger(__name__)
_PUMP_WAIT_S = 60.0


class RunningCore:
    """Takes requests until it is stopped or fails. Not started again."""

    def __init__(self, core: Core) -> None:
        """Starts both threads."""
        self.core = core
        self.streams = Streams(core.door)
        self._failure: NewestCell[EngineFailed | None] = NewestCell(None)
        self._threads = [
            threading.Thread(target=self._run_engine, name="engine", daemon=True),
            threading.Thread(target=self._run_signal, name="signal", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failure(self) -> EngineFailed | None:
        """What ended the engine thread, or None."""
        return self._failure.get()

    def push(
        self,
        make: Callable[[RequestHandle], Request],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Stream:
        """Hands a request over. Raises ``EngineDraining``, or the failure that ended the engine."""
        stream = self.streams.open(loop)
        try:
            self.core.door.push(make(stream.handle))
        except EngineDraining:
            self.streams.forget(stream)
            failure = self.failure
            if failure is not None:
                raise EngineFailed(str(failure)) from failure
            raise
        return stream

    def stop(self, *, finish: bool) -> None:
        """Ends every sequence, then the threads, and frees what the executor's start allocated.

        ``finish``: sequences run to their ends first. Otherwise they end as CANCELLED, with
        the code DRAINING.
        """
        if finish:
            self.core.door.drain()
        else:
            self.core.door.close()
        for thread in self._threads:
            thread.join()
        self.core.executor.close()
        if self.core.journal_file is not None:
            self.core.journal_file.close()

    def _run_engine(self) -> None:
        try:
            self.core.loop.run()
        except EngineFailed as failure:
            # Readers were told by the loop; who comes later is told by ``push``.
            self._failure.put(failure)
            _log.error("engine.failed", reason=str(failure))

    def _run_signal(self) -> None:
        """The thread's top frame: whoever waits is told, then no work is taken any more."""
        try:
            while (batch := self.core.door.take_outputs(_PUMP_WAIT_S)) is not None:
                self.streams.deliver(batch)
        except Exception as broken:
            failure = EngineFailed(f"the signal thread broke: {broken!r}")
            _log.error("engine.failed", reason=str(failure), exc_info=broken)
            self._failure.put(failure)
            self.core.door.close()
            self.streams.fail_all(Code.ENGINE_FAILED, str(failure))
