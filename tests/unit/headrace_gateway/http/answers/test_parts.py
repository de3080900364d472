"""Pieces of answers."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.http.answers.parts import (
    CompletionLogprobs,
    chat_logprobs,
    finish_name,
    finite,
    token_name,
    usage_body,
)
from headrace_gateway.inference.calls import TokenInfo, TopToken, UsageTotal
from support.fake_inference import token


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        (None, None),
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.CANCELLED, None),
        (FinishReason.ERROR, None),
    ],
)
def test_only_good_ends_have_a_name(reason: FinishReason | None, name: str | None) -> None:
    assert finish_name(reason) == name


def test_usage_sums_up() -> None:
    assert usage_body(UsageTotal(3, 4, 2)) == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_piece_of_a_character_is_named_by_its_bytes() -> None:
    assert token_name(token("é")) == "é"
    assert token_name(token(b"\xab")) == "bytes:\\xab"


def test_infinity_has_a_number() -> None:
    assert finite(float("-inf")) == -9999.0
    assert finite(-1.5) == -1.5


def test_candidates_are_listed_in_their_order() -> None:
    tops = [TopToken(1, "a", b"a", -0.1), TopToken(2, "b", b"b", -2.0)]
    info = TokenInfo(2, "b", b"b", -2.0, tops)
    [entry] = chat_logprobs([info])["content"]  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
    assert [top["token"] for top in entry["top_logprobs"]] == ["a", "b"]  # pyright: ignore[reportUnknownVariableType]
    columns = CompletionLogprobs().add([info])
    assert columns["top_logprobs"] == [{"a": -0.1, "b": -2.0}]


def test_offsets_go_on_from_piece_to_piece() -> None:
    columns = CompletionLogprobs()
    assert columns.add([token("ab"), token(b"\xc3")])["text_offset"] == [0, 2]
    assert columns.add([token(b"\xa9"), token("c")])["text_offset"] == [2, 3]
