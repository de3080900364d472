"""Fields of a chat."""

from __future__ import annotations

import pytest
from headrace_gateway.http.errors import HttpError
from headrace_gateway.http.schema.chat import ChatFields
from headrace_gateway.http.schema.fields import fields_of

ASK: dict[str, object] = {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({}, None),
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4}, 4),
        ({"max_tokens": 5, "max_completion_tokens": 5}, 5),
        ({"max_tokens": None, "max_completion_tokens": 0}, 0),
    ],
)
def test_either_name_of_the_limit_counts(change: dict[str, object], tokens: int | None) -> None:
    assert fields_of(ChatFields, {**ASK, **change}).sampling().max_tokens == tokens


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_say_how_many_candidates(change: dict[str, object], wanted: int | None) -> None:
    assert fields_of(ChatFields, {**ASK, **change}).sampling().logprobs == wanted


def test_candidates_without_logprobs_are_refused() -> None:
    with pytest.raises(HttpError, match="needs logprobs"):
        fields_of(ChatFields, {**ASK, "top_logprobs": 0})
