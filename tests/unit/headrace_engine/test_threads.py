"""Threads and side work, awaited."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
from headrace_engine.threads import beside, in_thread


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
        "from headrace_engine.threads import in_thread, leave_if_busy\n"
        "from headrace_kit.process import Stopped, unless_stopped\n"
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
