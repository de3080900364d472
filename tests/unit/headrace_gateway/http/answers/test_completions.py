"""Chunks of a completion, beyond what the route's tests show."""

from __future__ import annotations

import json

import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.http.answers.completions import CompletionChunks
from headrace_gateway.inference.calls import Delta, UsageTotal
from support.fake_inference import FakeRunning, token


def make(*, include_usage: bool = False, logprobs: bool = False) -> CompletionChunks:
    running = FakeRunning("cmpl-1", "m", [])
    return CompletionChunks(running, include_usage=include_usage, logprobs=logprobs)


def test_a_delta_without_text_or_end_makes_no_chunk() -> None:
    assert make().delta(Delta(0, "", (1,), (token("a"),), 1)) == ()


def test_an_end_without_text_makes_a_chunk() -> None:
    [raw] = make().delta(Delta(2, "", (), (), 1, finish=FinishReason.LENGTH))
    [choice] = json.loads(raw)["choices"]
    assert choice == {"index": 2, "text": "", "logprobs": None, "finish_reason": "length"}


def test_offsets_are_kept_for_each_choice_alone() -> None:
    chunks = make(logprobs=True)
    offsets = [
        json.loads(chunks.delta(Delta(index, "ab", (1,), (token("ab"),), 1))[0])["choices"][0][
            "logprobs"
        ]["text_offset"]
        for index in (0, 1, 0)
    ]
    assert offsets == [[0], [0], [2]]


def test_usage_is_null_before_the_last_chunk() -> None:
    chunks = make(include_usage=True)
    [raw] = chunks.delta(Delta(0, "a", (1,), (), 1))
    assert json.loads(raw)["usage"] is None
    last = chunks.usage(UsageTotal(1, 1, 0))
    assert last is not None
    assert json.loads(last)["usage"]["total_tokens"] == 2


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_that_hold_text_alone_are_whole(include_usage: bool) -> None:
    model = 'a "text":"" b \\'
    chunks = CompletionChunks(
        FakeRunning("cmpl-1", model, []), include_usage=include_usage, logprobs=False
    )
    for index, text in ((0, "a"), (3, 'say "text":"" \u00e9\n\x00'), (0, "b")):
        [raw] = chunks.delta(Delta(index, text, (1,), (), 1))
        [last] = chunks.delta(Delta(index, text, (1,), (), 1, finish=FinishReason.STOP))
        plain, ending = json.loads(raw), json.loads(last)
        assert list(plain) == list(ending)
        assert plain["model"] == model
        assert plain["choices"] == [{**ending["choices"][0], "finish_reason": None}]
        assert plain["choices"][0]["text"] == text
        assert ("usage" in plain) == include_usage
