"""The seam between io and the engine: what io needs of wherever the engine runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace_engine.executor.base import ModelShape
from headrace_engine.loading import Percent
from headrace_engine.model.loader.tokenizer_files import TokenizerFiles
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.metrics import ScheduleMetrics
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request


@dataclass(frozen=True, slots=True)
class Served:
    """What an engine serves, once it is loaded and sized."""

    name: str
    shape: ModelShape
    tokenizer: TokenizerFiles | None
    settings: SchedulerSettings


class HostDoor(Protocol):
    """The engine's door as io sees it, wherever the engine is."""

    def push(self, request: Request) -> None:
        """Hands a request over; raises ``EngineDraining`` once closed."""
        ...

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request in whatever state; a no-op for one that has ended or is unknown."""
        ...

    def close(self) -> None:
        """Abort: what is queued or running ends as CANCELLED with code DRAINING."""
        ...


class Host(Protocol):
    """One engine. Every call comes from the io thread."""

    async def load(self, percent: Percent) -> Served:
        """Loads, sizes and starts the executor. Raises ``ModelRejected``, ``SettingsError``, or
        whatever broke."""
        ...

    @property
    def door(self) -> HostDoor:
        """Open once ``load`` has returned."""
        ...

    def snapshot(self) -> ScheduleMetrics:
        """The engine after its newest pass."""
        ...

    async def run(self, hand_over: Callable[[list[PassOutputs]], None]) -> BaseException | None:
        """Runs the engine until it ends; then everything it told was handed over, in order.

        Returns what ended it, or None: it was closed. ``EngineDied``: it did not tell
        everything. ``hand_over`` is called on the io
        thread.
        """
        ...

    async def close(self) -> None:
        """Frees the device, and keeps the journal of an engine that failed. Also after an error."""
        ...
