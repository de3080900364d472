"""A rolling update in small: one of two gateways and one of two engines drain under 50 streams."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.following import Followed, follow, in_turn
from support.process import Process, engine_process
from support.processes import gateway_program, make_key
from support.redis import RedisServer
from support.waiting import wait_until

STREAMS = 50
PROMPT = " ".join(map(str, range(100, 300)))
"""No piece of it looks like another: a token that is lost or told twice shows in the text."""
TOKENS = 150
ENGINE = ("--echo-tokenizer", "--echo-step-ms", "20", "--max-batch", "64", "--cache-blocks", "4096")

pytestmark = pytest.mark.slow


def running(engine: Process) -> float:
    """Sequences that it runs."""
    for line in engine.get("/metrics")[1].splitlines():
        if line.startswith("headrace_engine_sequences_running "):
            return float(line.split()[1])
    return 0.0


async def both_run(engines: list[Process]) -> None:
    """Until each of them has something to lose."""
    for engine in engines:
        await asyncio.to_thread(wait_until, partial(running, engine), "it runs nothing")


@pytest.mark.parametrize("engine_grace_s", [0.2, 20.0])
async def test_gateways_and_engines_that_drain_lose_no_token_and_tell_none_twice(
    own_server: RedisServer, tmp_path: Path, engine_grace_s: float
) -> None:
    options = (*ENGINE, "--drain-s", str(engine_grace_s), "--max-batch", "32")
    engines = [engine_process(tmp_path / name, own_server.url, *options) for name in ("e1", "e2")]
    settings = {"drain_s": 0.3, "drain_notice_s": 0.2}
    try:
        async with (
            gateway_program(own_server.url, tmp_path / "g1", settings) as first,
            gateway_program(own_server.url, tmp_path / "g2", settings) as second,
        ):
            await first.ready()
            await second.ready()
            assert all(engine.ready for engine in engines)
            key = await make_key(own_server.url)
            body: dict[str, Any] = {"model": "m", "prompt": PROMPT, "max_tokens": TOKENS}
            async with httpx.AsyncClient(
                headers={"Authorization": f"Bearer {key}"},
                timeout=30,
                limits=httpx.Limits(max_connections=None),
            ) as http:
                whole = await follow(http, lambda: second.url, body)
                address = in_turn(first.url, second.url)
                async with asyncio.TaskGroup() as group:
                    streams = [
                        group.create_task(follow(http, address, body)) for _ in range(STREAMS)
                    ]
                    await both_run(engines)
                    first.terminate()
                    engines[0].signal(signal.SIGTERM)
                    assert await first.wait() == 0
            assert await asyncio.to_thread(engines[0].wait) == 0
    finally:
        for engine in engines:
            engine.stop()

    assert whole.tokens == TOKENS
    assert PROMPT.startswith(whole.text)
    told: list[Followed] = [stream.result() for stream in streams]
    assert [each.text for each in told] == [whole.text] * STREAMS
    assert all(each.rising for each in told)
    assert {each.tokens for each in told} == {TOKENS}
    assert {each.finish for each in told} == {"length"}
    assert sum(each.handed_over for each in told) > 0
    assert sum(each.cut_off for each in told) == 0
