"""What is started is stopped in reverse order, each stop within a deadline."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

from headrace_kit.log import get_logger

T = TypeVar("T")
Stop = Callable[[], Awaitable[object]]

STOP_DEADLINE_S = 10.0


class Lifecycle:
    """A stack of started things.

    ``async with Lifecycle() as life: life.push("http", server.stop)``. On leaving, every stop is
    called in reverse order, also when another stop failed or overran its deadline; the last
    failure is raised then. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def push(self, name: str, stop: Stop, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Remembers how to stop what was just started."""

        async def stop_in_time() -> None:
            try:
                async with asyncio.timeout(deadline_s):
                    await stop()
            except TimeoutError:
                get_logger(__name__).error(
                    "lifecycle.stop_overran", what=name, deadline_s=deadline_s
                )
                raise

        self._stack.push_async_callback(stop_in_time)

    async def enter(
        self,
        name: str,
        manager: AbstractAsyncContextManager[T],
        deadline_s: float = STOP_DEADLINE_S,
    ) -> T:
        """Enters ``manager``, to be left at the end."""
        entered = await manager.__aenter__()
        self.push(name, lambda: manager.__aexit__(None, None, None), deadline_s)
        return entered

    async def close(self) -> None:
        """Stops everything now."""
        await self._stack.aclose()


def install_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM or SIGINT sets; a second signal ends the process at once."""
    asked = asyncio.Event()

    def on_signal(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)  # the person insists; nothing is flushed on purpose
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return asked
