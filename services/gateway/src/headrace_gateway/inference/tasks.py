"""Short jobs beside the requests, in one task group: none outlives the service."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self

from headrace_kit.log import get_logger

log = get_logger(__name__)


class Tasks:
    """A task group that is entered once. A job that fails is logged; it ends nothing else."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._open = False
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Cancels what still runs, and waits for it."""
        self._open = False
        for task in self._running:
            task.cancel()
        await self._group.__aexit__(kind, error, trace)

    def serve(self, job: Coroutine[None, None, None], *, name: str) -> None:
        """Runs a job without which the rest makes no sense: its failure ends the whole group."""
        task = self._group.create_task(job, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def spawn(self, job: Coroutine[None, None, None], *, name: str) -> None:
        """Runs a job. Once closed, it is dropped."""
        if not self._open:
            job.close()
            return
        task = self._group.create_task(_guarded(job, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A task that is cancelled before its first step never begins the job it guards.
        task.add_done_callback(lambda _: job.close())


async def _guarded(job: Coroutine[None, None, None], name: str) -> None:
    try:
        await job
    except Exception:
        # The boundary of one request: its fault is logged, the others go on.
        log.exception("task.failed", task=name)
