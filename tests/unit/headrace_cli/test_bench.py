"""Measurements: of the echo engine in this process, and of a scripted API."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from headrace_cli.bench import Load, offline, served
from headrace_cli.endpoint import Endpoint
from headrace_cli.errors import CommandFailed
from support import smollm2


def test_prompts_differ_and_are_the_same_for_the_same_seed() -> None:
    load = Load(requests=5, concurrency=2, prompt_tokens=16, output_tokens=4)
    prompts = load.prompts(49_152)
    assert prompts == load.prompts(49_152)
    assert len({tuple(prompt) for prompt in prompts}) == 5
    assert all(len(prompt) == 16 and min(prompt) >= 1000 for prompt in prompts)
    assert max(map(max, load.prompts(50))) < 50


def test_the_engine_is_measured_in_this_process() -> None:
    smollm2.model_path()
    load = Load(requests=5, concurrency=2, prompt_tokens=16, output_tokens=4)
    text = offline(load, model=None, dtype=None, executor="echo")
    assert re.search(r"^5 requests, 20 tokens out in ", text, re.MULTILINE)
    assert text.startswith("SmolLM2-135M-Instruct, auto, echo; loaded in")


@pytest.mark.parametrize(
    ("model", "dtype", "words"), [("/no/such", None, "/no/such"), (None, "int3", "dtype")]
)
def test_what_cannot_be_measured_is_told(model: str | None, dtype: str | None, words: str) -> None:
    load = Load(1, 1, 1, 1)
    with pytest.raises(CommandFailed, match=words):
        offline(load, model=model, dtype=dtype, executor="echo")


class Stream(httpx.AsyncByteStream):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for text in "ab":
            yield b'data: {"choices":[{"text":"' + text.encode() + b'"}]}\n\n'
        yield b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'


class ScriptedEndpoint(Endpoint):
    """Answers every completion with two tokens, or refuses; remembers the bodies."""

    bodies: list[dict[str, object]]
    status: int

    def async_client(self, *, connections: int) -> httpx.AsyncClient:
        def answer(request: httpx.Request) -> httpx.Response:
            self.bodies.append(json.loads(request.content))
            if self.status != 200:
                return httpx.Response(self.status, text='{"error":{"message":"queue full"}}')
            return httpx.Response(200, stream=Stream())

        return httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://x")


def endpoint(status: int = 200) -> ScriptedEndpoint:
    class Here(ScriptedEndpoint):
        pass

    Here.bodies, Here.status = [], status
    return Here("http://x", "k")


async def test_a_served_stack_is_measured_by_its_own_token_counts() -> None:
    api = endpoint()
    text = await served(api, Load(6, 3, 8, 2), model="m")
    assert "6 requests, 12 tokens out" in text
    assert len(api.bodies) == 6
    assert {body["max_tokens"] for body in api.bodies} == {2}
    assert {body["ignore_eos"] for body in api.bodies} == {True}


async def test_a_refusal_ends_the_measurement_with_the_apis_words() -> None:
    with pytest.raises(CommandFailed, match="HTTP 429: queue full"):
        await served(endpoint(429), Load(2, 2, 8, 2), model="m")
