"""The engine on threads of this process: ``engine``, ``executor`` and ``signal`` beside io."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from headrace_kit.clock import Clock

from headrace_engine.core import Core, build_core, end_journal
from headrace_engine.host.base import HostDoor, Served
from headrace_engine.intake.publisher import pump
from headrace_engine.loading import LoadedModel, Percent
from headrace_engine.loop.garbage import Garbage
from headrace_engine.settings import EngineSettings
from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.threads import in_thread

Load = Callable[[EngineSettings, Percent], LoadedModel]

LAST_OUTPUTS_S: Final = 2.0
"""Longest wait for what an engine that has ended still has to tell."""


class ThreadHost:
    """One interpreter for io and engine: fine where steps are long, and all that tests need."""

    def __init__(self, settings: EngineSettings, load: Load, clock: Clock, engine: str) -> None:
        """``engine`` is this process's id."""
        self._settings = settings
        self._load = load
        self._clock = clock
        self._engine = engine
        self._core: Core | None = None
        self._failed = False

    async def load(self, percent: Percent) -> Served:
        """Loads on a thread of its own, which ends with the executor's started."""
        core = self._core = await in_thread("loader", partial(self._build, percent))
        return Served(core.model.name, core.model.shape, core.model.tokenizer, core.settings)

    @property
    def door(self) -> HostDoor:
        """The engine's own."""
        return self._built.door

    def snapshot(self) -> ScheduleMetrics:
        """The loop's newest."""
        return self._built.loop.metrics.get()

    async def run(self, hand_over: Callable[[list[PassOutputs]], None]) -> BaseException | None:
        """Runs the loop on the engine thread, and brings out what it tells on the signal thread."""
        core = self._built
        core.loop.garbage = Garbage()  # this process is one engine's: its loop says when to collect
        io = asyncio.get_running_loop()

        def to_io(batch: list[PassOutputs]) -> None:
            io.call_soon_threadsafe(hand_over, batch)

        async with asyncio.TaskGroup() as group:
            signal = group.create_task(in_thread("signal", partial(pump, core.door, to_io)))
            failure = await _outcome(in_thread("engine", core.loop.run))
            self._failed = failure is not None
            await asyncio.wait({signal}, timeout=LAST_OUTPUTS_S)
            signal.cancel()
        return failure

    async def close(self) -> None:
        """Frees the device, after the executor's last batch."""
        if self._core is None:
            return
        end = partial(end_journal, self._core, self._settings, self._engine, failed=self._failed)
        await in_thread("journal", end)
        await in_thread("executor close", self._core.executor.close)

    def _build(self, percent: Percent) -> Core:
        return build_core(self._settings, self._load(self._settings, percent), self._clock)

    @property
    def _built(self) -> Core:
        assert self._core is not None, "the engine is not loaded"
        return self._core


async def _outcome(work: Coroutine[object, object, None]) -> BaseException | None:
    """The error that ended ``work``, or None: a thread's end is an event, not a crash of ours."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return error
    return None
