"""Processes that are killed in the middle of a stream: it goes on, with the text of an undisturbed run."""

from __future__ import annotations

import os
import signal

import httpx
import pytest
from support.api import Api, Body, told
from support.figures import engine_metrics
from support.idle import check_idle
from support.served import ServedStack

STORY: Body = {
    "prompt": "Once upon a time, in a land far away, there lived a fox who",
    "max_tokens": 40,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}
BEFORE = 8
"""Events that have arrived when the process is killed."""

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", ["headrace_engine", "valkey-server"])
def test_a_stream_goes_on_with_the_same_text_after_a_kill(
    api: Api, stack: ServedStack, name: str
) -> None:
    expected = api.stream_completion(STORY).texts
    (process,) = stack.pids(name)
    asked = {"model": stack.model, **STORY, "stream": True}
    raw = b""
    killed = False
    with (
        httpx.Client(
            base_url=stack.url, headers=api.client.headers, timeout=150, trust_env=False
        ) as client,
        client.stream("POST", "/v1/completions", json=asked) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_raw():
            raw += piece
            if not killed and raw.count(b"data: ") >= BEFORE:
                os.kill(process, signal.SIGKILL)
                killed = True
    stream = told(raw)
    assert killed
    assert stream.error is None
    assert stream.texts == expected
    assert stream.reasons == [(0, "length")]
    assert stream.dones == 1
    assert stream.chunks[-1]["usage"]["completion_tokens"] == 40
    (successor,) = stack.pids(name)
    assert successor != process
    check_idle(stack)
    if name == "headrace_engine":  # the new one has continued it, it did not begin anew
        assert 0 < engine_metrics(stack)["headrace_engine_generated_tokens_total"] < 40
