"""Prompts in every shape; the route's tests show the refusals."""

from __future__ import annotations

import pytest
from headrace_gateway.http.errors import HttpError
from headrace_gateway.http.schema.prompts import prompts_of
from headrace_gateway.inference.calls import TextPrompt, TokenPrompt


def test_one_prompt_and_several_keep_their_order() -> None:
    assert prompts_of("a") == (TextPrompt("a"),)
    assert prompts_of([3, 2]) == (TokenPrompt([3, 2]),)
    assert prompts_of([[3], "a"]) == (TokenPrompt([3]), TextPrompt("a"))


def test_a_bad_prompt_among_good_ones_is_named() -> None:
    with pytest.raises(HttpError) as refusal:
        prompts_of(["a", [1, "b"]])
    assert refusal.value.param == "prompt[1]"
