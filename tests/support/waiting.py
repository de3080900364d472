"""Waiting for what another task, thread or process does: until it holds, and not for ever.

A wait is as long as it takes. The bound is there for what is broken, and far above what a machine
with other work needs; no test may fail because it is busy.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""How long a test waits for what must happen."""


async def eventually(holds: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Returns once ``holds()``, or what it gives to await, is true. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.005)


def wait_until(
    holds: Callable[[], object],
    what: str | Callable[[], str] = "it never came true",
    *,
    within_s: float = PATIENCE_S,
    every_s: float = 0.02,
) -> float:
    """Returns once ``holds()`` is true: how long it took, in seconds. Raises AssertionError with
    ``what``, which is asked in the end where it tells how things are.
    """
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began >= within_s:
            raise AssertionError(what if isinstance(what, str) else what())
        time.sleep(every_s)
    return time.monotonic() - began
