"""Passwords of a server of one's own, changed as the security guide says, while a stream is open."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from headrace_gateway.auth.keys import KeyStore
from headrace_kit.clock import SystemClock
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import ServerUnsuitable
from support import smollm2
from support.process import Process
from support.processes import PEPPER
from support.redis import RedisServer

Start = Callable[..., Process]
RIGHTS = (
    *("on", "resetkeys", "resetchannels", "~hr:*", "-@all", "+@read", "+@write", "+@connection"),
    *("+@transaction", "+@stream", "+eval", "+evalsha", "+time", "-@admin", "-@dangerous"),
    *("+info", "+config|get"),
)
"""As the chart's and compose's server has them."""
USERS = ("gateway", "engine")
TOKENS = 1_000
STEP_MS = {"old": "150", "new": "1"}
"""Of an engine with that password: the stream outlasts the rollout, however slow the machine starts
two processes, and then ends soon.
"""


@pytest.fixture
def start(own_server: RedisServer, tmp_path: Path) -> Generator[Start]:
    """Starts services that log in with a password."""
    with ExitStack() as stack:

        def start(user: str, password: str, *arguments: str) -> Process:
            name = user.upper()
            started = Process(
                f"headrace_{user}",
                tmp_path / f"{user}-{password}",
                *("--redis-url", own_server.url.replace("//", f"//{user}@"), "--http-port", "0"),
                *arguments,
                env={
                    f"HEADRACE_{name}_REDIS_PASSWORD": password,
                    "HEADRACE_GATEWAY_PEPPER": PEPPER,
                },
            )
            stack.callback(started.stop)
            return started

        yield start


def start_both(start: Start, password: str) -> tuple[Process, Process]:
    """A gateway and an engine, ready."""
    engine = start(
        *("engine", password, "--executor", "echo", "--echo-step-ms", STEP_MS[password]),
        *(
            "--cache-blocks",
            "256",
            "--drain-s",
            "0.2",
            "--model-name",
            "m",
            "--model",
            str(smollm2.model_path()),
        ),
    )
    gateway = start("gateway", password, "--grpc-port", "0")
    assert engine.ready
    assert gateway.ready
    return gateway, engine


def set_passwords(server: RedisServer, change: str) -> None:
    for user in USERS:
        assert server.command("ACL", "SETUSER", user, change) == b"+OK\r\n"


@pytest.mark.torch
async def test_a_stream_outlives_a_change_of_the_passwords(
    own_server: RedisServer, start: Start
) -> None:
    for user in USERS:
        assert own_server.command("ACL", "SETUSER", user, *RIGHTS, ">old") == b"+OK\r\n"
    wire = await connect_gateway(own_server.url)  # as the server's owner
    key, _ = await KeyStore(wire, PEPPER.encode(), SystemClock()).create(name="test")
    await wire.close()
    first, old_engine = await asyncio.to_thread(start_both, start, "old")
    # the echo engine says the prompt again, and ends
    prompt = " red" * TOKENS
    body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "stream": True}
    headers = {"Authorization": f"Bearer {key}"}

    set_passwords(own_server, ">new")
    async with httpx.AsyncClient(headers=headers, timeout=60, trust_env=False) as http:
        url = f"http://127.0.0.1:{first.http_port}/v1/completions"
        async with http.stream("POST", url, json=body) as response:
            assert response.status_code == 200, await response.aread()
            lines = response.aiter_lines()
            texts: list[str] = []
            while len(texts) < 5:
                texts += text_of(await anext(lines))
            # the rollout: the new ones come before the old ones go
            second, new_engine = await asyncio.to_thread(start_both, start, "new")
            old_engine.signal(signal.SIGTERM)
            first.signal(signal.SIGTERM)
            async for line in lines:
                texts += text_of(line)
        assert await asyncio.to_thread(first.wait) == 0
        assert await asyncio.to_thread(old_engine.wait) == 0

        set_passwords(own_server, "<old")
        own_server.command("CLIENT", "KILL", "TYPE", "normal")  # whoever still had let itself in
        url = f"http://127.0.0.1:{second.http_port}/v1/completions"
        answer = await http.post(url, json=body | {"prompt": " red", "stream": False})
    assert answer.json()["choices"][0]["text"] == " red"
    assert "".join(texts) == prompt
    [ended] = [line for line in new_engine.log().splitlines() if '"completion_tokens":1000' in line]
    assert '"attempt":2' in ended
    url = own_server.url.replace("//", "//gateway@")
    with pytest.raises(ServerUnsuitable, match="refuses our user or password"):
        await connect_gateway(url, password="old")


def text_of(line: str) -> list[str]:
    """Text of a stream's line; fails for an error event."""
    if not line.startswith("data: {"):
        return []
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    assert "choices" in event, event
    return [choice["text"] for choice in event["choices"]]
