"""Threads and side work as coroutines: a result, or an error, is awaited on the io thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")
_PREFIX = "headrace-"


async def in_thread(name: str, body: Callable[[], T]) -> T:
    """Runs ``body`` on a thread of its own. Cancelling stops the waiting, not the thread.

    The thread does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def succeed(result: T) -> None:
        if not outcome.done():
            outcome.set_result(result)

    def fail(error: BaseException) -> None:
        if not outcome.done():
            outcome.set_exception(error)

    def run() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            try:
                result = body()
            except BaseException as error:  # the thread's top frame: whoever awaits gets it
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, result)

    threading.Thread(target=run, name=f"{_PREFIX}{name}", daemon=True).start()
    return await outcome


def leave_if_busy(code: int) -> None:
    """Ends the process at once if a thread of ours is still at work.

    A thread deep in a library cannot be interrupted, and must not meet a dying interpreter.
    """
    if any(thread.name.startswith(_PREFIX) for thread in threading.enumerate()):
        sys.stderr.flush()
        os._exit(code)


@contextlib.asynccontextmanager
async def beside(*works: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Runs ``works`` while the body runs, and cancels them after it.

    The first error, of the body or of a work, ends all and is raised as it is.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
            yield
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
