"""Threads and side work, awaited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from headrace_engine.threads import Stopped, beside, in_thread, new_io_loop, unless_stopped


async def test_a_thread_gives_its_result_and_runs_under_its_name() -> None:
    assert await in_thread("loader", lambda: threading.current_thread().name) == "headrace-loader"


async def test_a_thread_gives_its_error() -> None:
    def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await in_thread("x", broken)


async def test_waiting_for_a_thread_can_be_given_up() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await in_thread("x", release.wait)
    release.set()
    await asyncio.sleep(0.05)  # its late result meets nobody, and nothing breaks


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    assert await unless_stopped(asyncio.Event(), work()) == 3


async def test_a_stop_cancels_the_work() -> None:
    stopping, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            stopping.set()
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(Stopped):
        await unless_stopped(stopping, work())
    assert cancelled.is_set()


async def test_an_error_of_the_work_comes_through() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless_stopped(asyncio.Event(), work())


async def test_side_work_ends_with_the_body() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with beside(work()):
        await asyncio.sleep(0)
    assert ended.is_set()


async def test_an_error_of_the_body_is_raised_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with beside(asyncio.sleep(60)):
            raise KeyError("x")


async def test_an_error_of_side_work_ends_the_body() -> None:
    async def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        async with beside(broken()):
            await asyncio.sleep(60)


def test_a_busy_thread_does_not_hold_the_process_up() -> None:
    program = (
        "import asyncio, time\n"
        "from headrace_engine.threads import Stopped, in_thread, leave_if_busy, unless_stopped\n"
        "async def main():\n"
        "    stopping = asyncio.Event()\n"
        "    asyncio.get_running_loop().call_later(0.1, stopping.set)\n"
        "    try:\n"
        "        await unless_stopped(stopping, in_thread('loader', lambda: time.sleep(600)))\n"
        "    except Stopped:\n"
        "        pass\n"
        "asyncio.run(main())\n"
        "leave_if_busy(3)\n"
    )

    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 3


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop")
def test_the_io_loop_is_uvloops() -> None:
    with asyncio.Runner(loop_factory=new_io_loop) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")
        assert runner.run(in_thread("x", lambda: 3)) == 3
