"""The engine's process from its parent's side: how it may die, and what io is told then."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from headrace_engine.errors import EngineDied, EngineDraining
from headrace_engine.host import process
from headrace_engine.host.process import ProcessHost
from headrace_engine.settings import EngineSettings
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.packed import Kind, pack
from headrace_kit.process import FAILED
from support.faulty_engine import COMMAND, POISON
from support.hosts import LIMIT_S, hosted

SETTINGS = EngineSettings(executor="echo", cache_blocks=64, model_name="m", log_level="error")


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process finds the tests' executor."""
    tests = next(path for path in Path(__file__).parents if path.name == "tests")
    monkeypatch.setenv("PYTHONPATH", str(tests))


@pytest.mark.rule("threads.two-processes")
async def test_a_process_that_dies_at_work_is_an_end_with_its_exit_code() -> None:
    async with hosted("process", SETTINGS) as engine, asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.push(1, [POISON], 5)
        failure = await asyncio.wait_for(run, LIMIT_S)

        assert isinstance(failure, EngineDied)
        assert "exit code 70" in str(failure)
        assert (engine.tokens(1), engine.ends(1)) == ([], [])  # that it began may be told by then
        with pytest.raises(EngineDraining):
            engine.push(2, [5], 1)
        engine.cancel(1)  # nobody hears it, and nobody minds


async def test_a_process_that_is_killed_is_an_end_that_names_the_signal() -> None:
    async with hosted("process", SETTINGS) as engine, asyncio.TaskGroup() as group:
        assert isinstance(engine.host, ProcessHost)
        run = group.create_task(engine.host.run(engine.hear))
        assert engine.host.pid is not None
        os.kill(engine.host.pid, signal.SIGKILL)
        failure = await asyncio.wait_for(run, LIMIT_S)

        assert "SIGKILL" in str(failure)


async def test_a_process_that_meets_what_it_cannot_understand_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could be told nothing any more, its parent's end among the rest."""

    def not_for_an_engine(cancel: Cancel) -> bytes:
        return pack(Kind.LOADING)

    monkeypatch.setattr(process, "pack_cancel", not_for_an_engine)
    async with hosted("process", SETTINGS) as engine, asyncio.TaskGroup() as group:
        run = group.create_task(engine.host.run(engine.hear))
        engine.cancel(1)
        failure = await asyncio.wait_for(run, LIMIT_S)

        assert f"exit code {FAILED}" in str(failure)


async def test_signals_that_a_terminal_sends_to_both_do_not_end_it() -> None:
    async with hosted("process", SETTINGS) as engine, asyncio.TaskGroup() as group:
        assert isinstance(engine.host, ProcessHost)
        run = group.create_task(engine.host.run(engine.hear))
        assert engine.host.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(engine.host.pid, number)
        engine.push(1, [5], 3)
        await engine.until(lambda: bool(engine.ends(1)))
        engine.host.door.close()

        assert await asyncio.wait_for(run, LIMIT_S) is None


async def test_one_that_dies_before_it_serves_says_so() -> None:
    host = ProcessHost(SETTINGS, "e-1", ("-c", "raise SystemExit(3)"))
    try:
        with pytest.raises(EngineDied, match="exit code 3"):
            await host.load(lambda _: None)
    finally:
        await host.close()


async def test_one_that_is_not_wanted_any_more_while_it_loads_is_killed() -> None:
    host = ProcessHost(SETTINGS, "e-1", ("-c", "import time; time.sleep(600)"))
    async with asyncio.TaskGroup() as group:
        loading = group.create_task(host.load(lambda _: None))
        while host.pid is None:  # noqa: ASYNC110 - a start raises no event
            await asyncio.sleep(0.01)
        loading.cancel()
    await host.close()

    with pytest.raises(ProcessLookupError):
        os.kill(host.pid, 0)


async def test_progress_of_loading_is_told() -> None:
    host = ProcessHost(SETTINGS, "e-1", COMMAND)
    seen: list[int] = []
    try:
        served = await host.load(seen.append)
    finally:
        await host.close()

    assert (served.name, seen) == ("m", [100])
