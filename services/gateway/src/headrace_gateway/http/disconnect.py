"""Work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.types import Receive

from headrace_gateway.http.errors import ClientLeft

T = TypeVar("T")


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """The result of ``work``; cancels it and raises ``ClientLeft`` once the client is gone.

    The body must have been read before: from then on ``receive`` has only the end to tell.
    """
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_raise_when_left(receive))
            result = await work
            watch.cancel()
    except BaseExceptionGroup as several:
        # A group of one: either the work failed, or the watch did and the work was cancelled.
        raise several.exceptions[0] from None
    return result


async def _raise_when_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientLeft
