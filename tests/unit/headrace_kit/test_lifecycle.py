"""What is started is stopped in reverse, whatever happens on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from headrace_kit.lifecycle import Lifecycle, install_signals

INSISTENT = """
import asyncio, os, signal
from headrace_kit.lifecycle import install_signals
async def main():
    asked = install_signals(asyncio.get_running_loop())
    os.kill(os.getpid(), signal.SIGTERM)
    await asked.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def recorder(
    order: list[str], name: str, failure: Exception | None = None
) -> Callable[[], Awaitable[None]]:
    async def stop() -> None:
        order.append(name)
        if failure is not None:
            raise failure

    return stop


async def test_stops_run_in_reverse_order() -> None:
    order: list[str] = []
    async with Lifecycle() as life:
        life.push("a", recorder(order, "a"))
        life.push("b", recorder(order, "b"))
        assert order == []
    assert order == ["b", "a"]


async def test_failing_stop_does_not_keep_the_others_from_stopping() -> None:
    order: list[str] = []
    life = Lifecycle()
    life.push("a", recorder(order, "a"))
    life.push("b", recorder(order, "b", OSError("no")))
    life.push("c", recorder(order, "c"))
    with pytest.raises(OSError, match="no"):
        await life.close()
    assert order == ["c", "b", "a"]


async def test_stop_that_overruns_its_deadline_is_abandoned() -> None:
    order: list[str] = []
    life = Lifecycle()
    life.push("a", recorder(order, "a"))
    life.push("stuck", asyncio.Event().wait, deadline_s=0.01)
    with pytest.raises(TimeoutError):
        await life.close()
    assert order == ["a"]


async def test_failure_while_starting_stops_what_was_started() -> None:
    order: list[str] = []

    async def start() -> None:
        async with Lifecycle() as life:
            life.push("a", recorder(order, "a"))
            raise ValueError("second does not start")

    with pytest.raises(ValueError, match="second"):
        await start()
    assert order == ["a"]


async def test_context_managers_are_entered_now_and_left_at_the_end() -> None:
    order: list[str] = []

    @asynccontextmanager
    async def resource() -> AsyncGenerator[int]:
        order.append("in")
        yield 7
        order.append("out")

    async with Lifecycle() as life:
        assert await life.enter("resource", resource()) == 7
        assert order == ["in"]
    assert order == ["in", "out"]


async def test_close_runs_each_stop_once() -> None:
    order: list[str] = []
    async with Lifecycle() as life:
        life.push("a", recorder(order, "a"))
        await life.close()
    assert order == ["a"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_sets_the_event(number: signal.Signals) -> None:
    loop = asyncio.get_running_loop()
    asked = install_signals(loop)
    try:
        os.kill(os.getpid(), number)
        await asyncio.wait_for(asked.wait(), timeout=20)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        loop.remove_signal_handler(signal.SIGINT)


def test_second_signal_ends_the_process_at_once() -> None:
    ended = subprocess.run([sys.executable, "-c", INSISTENT], timeout=90, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
