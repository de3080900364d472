"""Streams and the bell in memory."""

from __future__ import annotations

import asyncio

from headrace_transport.memory_streams import Bell, Stream
from support.clock import FakeClock
from support.waiting import eventually


def test_ids_grow_also_when_the_clock_does_not() -> None:
    clock = FakeClock(wall_ms=5)
    stream: Stream[str] = Stream(clock.wall_ms)
    names = [stream.append("a"), stream.append("b")]
    clock.jump(-1)
    names.append(stream.append("c"))
    clock.advance(2)
    names.append(stream.append("d"))
    assert names == ["5-0", "5-1", "5-2", "1005-0"]


def test_range_excludes_both_ends() -> None:
    stream: Stream[int] = Stream(FakeClock(wall_ms=5).wall_ms)
    for i in range(5):
        stream.append(i)
    assert [item for _, item in stream.after("5-0", "5-4")] == [1, 2, 3]
    stream.trim("5-3")
    assert [item for _, item in stream.after("0-0")] == [3, 4]
    assert len(stream) == 2


async def test_read_ends_with_the_first_entry_or_the_time() -> None:
    stream: Stream[int] = Stream(FakeClock().wall_ms)
    assert await stream.read("0-0", block_ms=1) == []
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(stream.read("0-0", block_ms=20_000)) for _ in range(2)]
        await asyncio.sleep(0)
        stream.append(7)
    assert [[item for _, item in read.result()] for read in reads] == [[7], [7]]


async def test_stroke_wakes_one_waiter_the_longest_first() -> None:
    bell = Bell()
    order: list[int] = []

    async def wait(number: int) -> None:
        if await bell.wait(timeout_ms=20_000):
            order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(wait(number))
            await asyncio.sleep(0)
        for number in range(3):
            bell.ring()
            await eventually(lambda: len(order) > number)  # noqa: B023 - awaited here
            assert order == list(range(number + 1))


async def test_strokes_are_kept_up_to_a_bound_and_can_be_dropped() -> None:
    bell = Bell()
    for _ in range(100):
        bell.ring()
    kept = 0
    while await bell.wait(timeout_ms=1):
        kept += 1
    assert kept == Bell.BOUND
    bell.ring(at_most=1)
    bell.ring(at_most=1)
    assert await bell.wait(timeout_ms=1)
    assert not await bell.wait(timeout_ms=1)
    bell.ring()
    bell.hush()
    assert not await bell.wait(timeout_ms=1)


async def test_waiter_that_gave_up_takes_no_stroke() -> None:
    bell = Bell()
    assert not await bell.wait(timeout_ms=1)
    waiting = asyncio.ensure_future(bell.wait(timeout_ms=20_000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    bell.ring()
    assert await bell.wait(timeout_ms=1)
