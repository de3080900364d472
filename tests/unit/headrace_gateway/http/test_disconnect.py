"""Work and its client's presence."""

from __future__ import annotations

import asyncio

import pytest
from headrace_gateway.http.disconnect import while_connected
from headrace_gateway.http.errors import ClientLeft
from starlette.types import Message


class Line:
    """A ``receive`` that tells of the end when the test says so."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_the_result_is_given_and_the_watch_ends() -> None:
    async def work() -> int:
        return 5

    before = asyncio.all_tasks()
    assert await while_connected(Line().receive, work()) == 5
    assert asyncio.all_tasks() == before


async def test_the_work_s_own_error_comes_through_as_it_is() -> None:
    async def work() -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await while_connected(Line().receive, work())


async def test_a_departure_cancels_the_work() -> None:
    line = Line()
    cancelled = asyncio.Event()

    async def work() -> None:
        line.left.set()
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(ClientLeft):
        await while_connected(line.receive, work())
    assert cancelled.is_set()


async def test_a_cancel_from_outside_stays_a_cancel() -> None:
    async def work() -> None:
        await asyncio.sleep(60)

    task = asyncio.create_task(while_connected(Line().receive, work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
