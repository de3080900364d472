"""An engine whose io has a process of its own, on a real server: what serves, what ends, who dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from headrace_contracts.codes import FinishReason
from support.faulty_engine import BREAK
from support.held import make_record
from support.process import Process, engine_process
from support.redis import RedisServer
from support.waiting import wait_until
from support.wire_client import wire_client

Start = Callable[..., Process]
LIMIT_S = 30.0


@pytest.fixture
def start(own_server: RedisServer, tmp_path: Path) -> Generator[Start]:
    """Starts engines of two processes each, and ends them."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, module: str = "headrace_engine") -> Process:
            given = ("--io-process", "on", "--echo-step-ms", "5", *arguments)
            count = len(list(tmp_path.iterdir()))
            engine = engine_process(tmp_path / f"e{count}", own_server.url, *given, module=module)
            stack.callback(engine.stop)
            return engine

        yield start


def engine_pid(engine: Process) -> int:
    """The process that runs passes."""
    for line in engine.log().splitlines():
        if '"engine.process"' in line:
            return int(json.loads(line)["engine_pid"])
    raise AssertionError(engine.log())


def wait_until_gone(pid: int) -> None:
    """Fails where the process stays."""
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"{pid} is still there")


async def test_it_serves_shows_its_metrics_and_ends_as_asked(
    own_server: RedisServer, start: Start
) -> None:
    engine = start()
    assert engine.ready["pid"] == engine.pid != engine_pid(engine)
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(5, 6, 7), max_new_tokens=7, slot=3))
        out = await client.until_finished(3)
        await client.settled("r1")
    # the server knows it is settled before the engine does
    wait_until(lambda: "headrace_engine_requests_held 0.0" in engine.get("/metrics")[1])
    body = engine.get("/metrics")[1]
    engine.signal(signal.SIGTERM)

    assert engine.wait() == 0
    assert out.tokens == {3: [5, 6, 7, 5, 6, 7, 5]}
    assert "headrace_engine_generated_tokens_total 7.0" in body
    assert 'headrace_engine_requests_finished_total{reason="length"} 1.0' in body
    wait_until_gone(engine_pid(engine))


async def the_one_that_runs(engines: list[Process]) -> tuple[Process, Process]:
    """The one of two that has the only request, and the other."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            for engine, other in (engines, engines[::-1]):
                metrics = await asyncio.to_thread(engine.get, "/metrics")
                if "headrace_engine_requests_held 1.0" in metrics[1]:
                    return engine, other
            await asyncio.sleep(0.05)


@pytest.mark.rule("threads.two-processes")
@pytest.mark.parametrize("dies", ["engine", "io"])
async def test_whichever_dies_takes_the_other_along_and_another_engine_goes_on_without_a_gap(
    own_server: RedisServer, start: Start, dies: str
) -> None:
    engines = [start("--lease-ms", "1000"), start("--lease-ms", "1000")]
    assert all(engine.ready for engine in engines)
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(5, 6, 7), max_new_tokens=1500, slot=3))
        await client.until_tokens(3, 20)
        victim, other = await the_one_that_runs(engines)
        if dies == "engine":
            os.kill(engine_pid(victim), signal.SIGKILL)
            assert await asyncio.to_thread(victim.wait) == 1
        else:
            victim.kill()
        wait_until_gone(engine_pid(victim))
        out = await client.until_finished(3)

    assert out.tokens[3] == [5, 6, 7] * 500
    assert out.finishes[3] is FinishReason.LENGTH
    assert '"request.taken_over"' in other.log()
    if dies == "engine":
        assert "SIGKILL" in victim.log()
        assert '"request.let_go"' in victim.log()
    else:
        assert '"engine.io_gone"' in victim.log()


async def test_a_drain_gives_back_what_does_not_end_in_time(
    own_server: RedisServer, start: Start
) -> None:
    engines = [start("--drain-s", "0.2"), start("--drain-s", "0.2")]
    assert all(engine.ready for engine in engines)
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(5, 6, 7), max_new_tokens=1500, slot=3))
        await client.until_tokens(3, 20)
        first, _ = await the_one_that_runs(engines)
        first.signal(signal.SIGTERM)
        assert await asyncio.to_thread(first.wait) == 0
        wait_until_gone(engine_pid(first))
        out = await client.until_finished(3)

    assert out.tokens[3] == [5, 6, 7] * 500


async def test_a_device_that_is_lost_ends_both_after_the_journal(
    own_server: RedisServer, start: Start, tmp_path: Path
) -> None:
    journals = tmp_path / "journals"
    engine = start("--journal-dir", str(journals), module="support.faulty_engine")
    assert engine.ready
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(BREAK,), max_new_tokens=2, slot=2))

        assert engine.wait() == 1
    assert "the device is lost" in engine.log()
    assert len(list(journals.iterdir())) == 1
    wait_until_gone(engine_pid(engine))


def test_a_model_that_is_refused_is_one_line_and_exit_code_2(start: Start) -> None:
    engine = start("--cache-blocks", "1")

    assert engine.wait(60) == 2  # a start is in it
    assert "less than two blocks" in engine.log()
    assert "Traceback" not in engine.log()
