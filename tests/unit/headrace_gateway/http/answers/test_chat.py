"""Chunks of a chat, beyond what the route's tests show."""

from __future__ import annotations

import json
from typing import Any

from headrace_contracts.codes import FinishReason
from headrace_gateway.http.answers.chat import ChatChunks
from headrace_gateway.inference.calls import Delta, UsageTotal
from support.fake_inference import FakeRunning, token


def choices(chunks: ChatChunks, event: Delta) -> list[dict[str, Any]]:
    return [json.loads(raw)["choices"][0] for raw in chunks.delta(event)]


def make(*, include_usage: bool = False, logprobs: bool = False) -> ChatChunks:
    return ChatChunks(
        FakeRunning("chatcmpl-1", "m", []), include_usage=include_usage, logprobs=logprobs
    )


def test_a_choice_that_ends_at_once_still_has_its_role() -> None:
    end = Delta(0, "", (), (), 0, finish=FinishReason.STOP)
    assert [choice["delta"] for choice in choices(make(), end)] == [
        {"role": "assistant", "content": ""},
        {},
    ]


def test_tokens_without_text_are_told_only_with_logprobs() -> None:
    silent = Delta(0, "", (1,), (token(b"\xf0"),), 1)
    assert len(choices(make(), silent)) == 1
    told = choices(make(logprobs=True), silent)[1]
    assert told["delta"] == {"content": ""}
    assert told["logprobs"]["content"][0]["token"] == "bytes:\\xf0"


def test_a_bad_end_has_no_finish_reason() -> None:
    end = Delta(0, "a", (1,), (), 1, finish=FinishReason.ERROR)
    assert [choice["finish_reason"] for choice in choices(make(), end)] == [None, None]


def test_usage_only_when_wanted() -> None:
    assert make().usage(UsageTotal(1, 1, 0)) is None
    raw = make(include_usage=True).usage(UsageTotal(1, 1, 0))
    assert raw is not None
    assert json.loads(raw)["choices"] == []


def test_chunks_after_the_first_differ_in_their_text_alone() -> None:
    chunks = make(include_usage=True)
    text = 'say "content":"" \u00e9\n'
    _role, opening = chunks.delta(Delta(1, text, (1,), (), 1))
    [later] = chunks.delta(Delta(1, text, (1,), (), 2))
    assert later == opening
    assert json.loads(later)["choices"][0]["delta"] == {"content": text}
