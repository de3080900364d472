"""Streams through real gateways while engines, gateways or the server die under them.

The engines echo with tokens that depend on the attempt: one that is decided twice shows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from headrace_contracts.pb.inference_pb2 import GenerateRequest, TokenPrompt
from headrace_contracts.pb.inference_pb2_grpc import InferenceStub
from support.process import Process
from support.processes import GatewayProgram, gateway_program, make_key
from support.redis import RedisServer

pytestmark = pytest.mark.slow

PROMPT = (1010, 2020, 3030, 4040, 5050)
SETTINGS: dict[str, object] = {"silence_check_s": 0.5, "lost_engine_s": 60}
TEXT = "--echo-tokenizer"
"""Gateways serve models that have text alone."""
Start = Callable[..., Process]


@asynccontextmanager
async def generating(
    gateway: GatewayProgram, key: str, tokens: int
) -> AsyncGenerator[AsyncGenerator[list[int]]]:
    """Token ids of a running gRPC call, event by event."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
        stub: Any = InferenceStub(channel)
        call = stub.Generate(
            GenerateRequest(
                model="m",
                tokens=TokenPrompt(ids=PROMPT),
                max_tokens=tokens,
                ignore_eos=True,
                return_token_ids=True,
            ),
            metadata=(("authorization", f"Bearer {key}"),),
            timeout=100,
        )

        async def events() -> AsyncGenerator[list[int]]:
            async for event in call:
                yield list(event.token_ids)
                if event.HasField("usage"):
                    assert event.usage.completion_tokens == tokens

        yield events()


def attempts_of(tokens: list[int]) -> list[int]:
    """The attempt that decided each token."""
    return [token - PROMPT[i % len(PROMPT)] for i, token in enumerate(tokens)]


async def take(events: AsyncGenerator[list[int]], count: int | None = None) -> list[int]:
    """At least so many tokens, or all that come."""
    taken: list[int] = []
    async for ids in events:
        taken.extend(ids)
        if count is not None and len(taken) >= count:
            break
    return taken


async def test_a_killed_engine_pauses_a_stream_and_no_token_is_decided_twice(
    own_server: RedisServer, start: Start, tmp_path: Path
) -> None:
    first = start(TEXT, "--echo-step-ms", "20")  # far from its end when the test hears of a token
    async with gateway_program(own_server.url, tmp_path / "g", SETTINGS) as gateway:
        await gateway.ready()
        assert first.ready
        key = await make_key(own_server.url)
        async with generating(gateway, key, 400) as events:
            taken = await take(events, 60)
            first.kill()
            start(TEXT)
            taken += await take(events)
    assert len(taken) == 400
    found = attempts_of(taken)
    assert found == sorted(found)
    assert set(found) == {1, 2}
    assert found[59] == 1


async def test_a_server_that_loses_everything_pauses_a_stream_and_no_token_is_decided_twice(
    own_server: RedisServer, start: Start, tmp_path: Path
) -> None:
    engine = start(TEXT)
    async with gateway_program(own_server.url, tmp_path / "g", SETTINGS) as gateway:
        await gateway.ready()
        assert engine.ready
        key = await make_key(own_server.url)
        async with generating(gateway, key, 400) as events:
            taken = await take(events, 60)
            await asyncio.to_thread(own_server.restart, empty=True)
            taken += await take(events)
    assert len(taken) == 400
    found = attempts_of(taken)
    assert found == sorted(found)
    assert found[59] == 1
    assert found[-1] > 8
    assert engine.exit_code is None


async def test_a_stream_survives_its_gateway_when_the_client_takes_it_up_at_another(
    own_server: RedisServer, start: Start, tmp_path: Path
) -> None:
    keep = SETTINGS | {"resume_grace_s": 60, "lease_s": 2}
    engine = start(TEXT, "--resume-grace-s", "60", "--echo-step-ms", "8")
    async with (
        gateway_program(own_server.url, tmp_path / "a", keep) as first,
        gateway_program(own_server.url, tmp_path / "b", keep) as second,
    ):
        await first.ready()
        await second.ready()
        assert engine.ready
        key = await make_key(own_server.url)
        asked = {
            "model": "m",
            "prompt": list(PROMPT),
            "max_tokens": 300,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            async with http.stream("POST", f"{second.url}/v1/completions", json=asked) as response:
                undisturbed = "".join([text async for _, _, text in told(response)])
            heard = Heard()
            with pytest.raises(httpx.HTTPError):
                await heard.until_it_breaks(http, first, asked)
            await asyncio.sleep(0.3)
            path = f"{second.url}/v1/requests/{heard.request_id}/events"
            async with http.stream("GET", path, params={"after": heard.cursor}) as response:
                assert response.status_code == 200
                async for _, _, text in told(response):
                    heard.text += text
    assert heard.text == undisturbed


class Heard:
    """What a client knows when its gateway dies."""

    def __init__(self) -> None:
        self.request_id = ""
        self.cursor = ""
        self.text = ""

    async def until_it_breaks(
        self, http: httpx.AsyncClient, gateway: GatewayProgram, asked: dict[str, Any]
    ) -> None:
        """Reads a stream, and kills its gateway on the way."""
        url = f"{gateway.url}/v1/completions"
        async with http.stream("POST", url, json=asked) as response:
            async for request_id, cursor, text in told(response):
                self.request_id, self.cursor = request_id, cursor
                self.text += text
                if len(self.text) > 100:
                    gateway.process.kill()


async def told(response: httpx.Response) -> AsyncGenerator[tuple[str, str, str]]:
    """Request id, cursor and text of each event of a stream."""
    cursor = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            cursor = line.removeprefix("id: ")
        elif line.startswith("data: {"):
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            yield chunk["id"], cursor, chunk["choices"][0]["text"]
