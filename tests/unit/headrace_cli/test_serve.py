"""Waiting for a stack, and what it tells the person; ``tests/e2e/test_serve.py`` runs one."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.processes import ServeOptions
from headrace_cli.serve import check_given_key, first_model, serve, until_ready, welcome
from headrace_cli.state import StateDir
from headrace_cli.supervisor import SupervisionFailed


class Starting:
    """A gateway that refuses connections, then is not ready, then is."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        if self.calls == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if self.calls == 2 else 200)


@pytest.mark.parametrize("key", ["abc", "two words", "x" * 9999, "schlüssel-lang"])
def test_a_key_that_no_gateway_would_take_is_refused_before_anything_starts(
    key: str, tmp_path: Path
) -> None:
    state = StateDir(tmp_path / "s")
    options = ServeOptions(None, 0, 0, 1, key, None, None, "echo", quiet=True)
    with pytest.raises(CommandFailed, match="--api-key"):
        serve(options, state)
    assert not state.path.exists()


def test_chosen_keys_and_those_made_here_are_taken() -> None:
    for key in (None, "long-enough", "hr_whatever"):
        check_given_key(key)


async def test_a_gateway_is_asked_until_it_is_ready() -> None:
    gateway = Starting()
    async with httpx.AsyncClient(transport=httpx.MockTransport(gateway)) as client:
        await until_ready(client, "http://x")
    assert gateway.calls == 3


async def test_a_refused_model_list_is_told() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(401, text="no key"))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(SupervisionFailed, match="answered 401: no key"):
            await first_model(client, "http://x", "k")


def test_the_curl_line_can_be_pasted_as_it_stands() -> None:
    text = welcome("http://x", 9, "m", "hr_key", "/state/api_key")
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("curl "))
    assert lines[first].endswith("\\")
    assert lines[first + 1].endswith("\\")
    assert lines[first + 2].endswith("}'")
    body = json.loads(lines[first + 2].strip().removeprefix("-d ").strip("'"))
    assert body["max_tokens"] == 64  # without it a small model may talk for minutes
    for words in ("http://x/v1", "127.0.0.1:9", "hr_key", "/state/api_key", 'model="m"'):
        assert words in text
