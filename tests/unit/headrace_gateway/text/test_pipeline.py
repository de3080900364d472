"""Prompts in, text of choices out, on the default model's own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from headrace_contracts.codes import Code
from headrace_gateway.inference.calls import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt
from headrace_gateway.text.errors import PromptRejected, TextTooLong
from headrace_gateway.text.pipeline import TextPipeline
from hypothesis import given
from hypothesis import strategies as st
from support import smollm2
from support.cuts import cut

CASES = json.loads(
    (Path(__file__).parents[3] / "data" / "smollm2_greedy.json").read_text(encoding="utf-8")
)["cases"]
END = 2
LONG = 8192 * 81
"""Bytes of so many of the longest tokens as the context has."""


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_prompt_ids_equal_the_reference(case: dict[str, list[dict[str, str]]]) -> None:
    messages = [Message(message["role"], message["content"]) for message in case["messages"]]
    assert smollm2.text_pipeline().prompt_ids(ChatPrompt(messages)) == case["prompt_ids"]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_output_text_equals_the_reference(case: Mapping[str, object]) -> None:
    ids = cast("list[int]", case["output_ids"])
    wanted = str(case["output_text"])
    choice = smollm2.text_pipeline().choice(stop_token_ids=(0, END))
    shown = "".join(choice.push([token]).text for token in ids[:-1])
    shown += choice.push(ids[-1:], final=True).text
    assert shown == wanted.removesuffix("<|im_end|>")


def test_raw_prompts_parse_control_tokens() -> None:
    ids = smollm2.text_pipeline().prompt_ids(TextPrompt("<|im_start|>user\nhello<|im_end|>"))
    assert ids == [1, 4093, 198, 28120, END]


def test_the_begin_token_is_added_once_where_the_model_wants_it() -> None:
    card = smollm2.card()
    card.add_begin_token = True
    pipeline = TextPipeline.from_card(card, smollm2.tokenizer_files().files)
    assert pipeline.prompt_ids(TextPrompt("hello")) == [1, 28120]
    assert pipeline.prompt_ids(TextPrompt("<|im_start|>hello")) == [1, 28120]
    assert pipeline.prompt_ids(TextPrompt("")) == [1]


@pytest.mark.parametrize(
    "prompt", [TextPrompt("x" * LONG), ChatPrompt([Message("user", "<" * LONG)])]
)
def test_a_prompt_too_long_by_its_bytes_alone_is_refused_with_the_numbers(prompt: Prompt) -> None:
    with pytest.raises(TextTooLong, match=r"8192 tokens\. .* has 819[2-9] or more") as refused:
        smollm2.text_pipeline().prompt_ids(prompt)
    assert refused.value.code is Code.CONTEXT_LENGTH_EXCEEDED


@pytest.mark.parametrize("token", [-1, smollm2.VOCABULARY])
def test_token_ids_outside_the_vocabulary_are_refused_with_their_place(token: int) -> None:
    with pytest.raises(PromptRejected, match=f"Token 1 of the prompt is {token}"):
        smollm2.text_pipeline().prompt_ids(TokenPrompt([0, token]))


def test_a_model_without_a_template_refuses_messages() -> None:
    card = smollm2.card()
    card.chat_template = ""
    pipeline = TextPipeline.from_card(card, smollm2.tokenizer_files().files)
    with pytest.raises(PromptRejected, match="no chat template"):
        pipeline.prompt_ids(ChatPrompt([Message("user", "hello")]))


def tokens(text: str) -> list[int]:
    return smollm2.text_pipeline().encode_text(text)


def test_a_stop_string_ends_the_choice_at_the_token_that_completes_it() -> None:
    choice = smollm2.text_pipeline().choice(stop=["J K L"])
    delta = choice.push(tokens(" G H I J K L M N"))
    assert (delta.text, delta.stopped_at) == (" G H I ", 6)
    assert choice.push(tokens(" O")) == choice.push((), final=True)
    assert choice.tokens == 6


def test_text_held_for_a_stop_is_released_when_the_engine_ends_the_choice() -> None:
    choice = smollm2.text_pipeline().choice(stop=["I J Q"])
    assert choice.push(tokens(" G H I J")).text == " G H "
    assert choice.push((), final=True).text == "I J"


def test_a_match_within_the_first_min_tokens_does_not_stop() -> None:
    letters = tokens(" G H I J K L M I N")
    choice = smollm2.text_pipeline().choice(stop=["I"], min_tokens=6)
    delta = choice.push(letters)
    assert (delta.text, delta.stopped_at) == (" G H I J K L M ", 8)
    at_the_edge = smollm2.text_pipeline().choice(stop=["I"], min_tokens=3)
    assert at_the_edge.push(letters).stopped_at == 8
    after_it = smollm2.text_pipeline().choice(stop=["I"], min_tokens=2)
    assert after_it.push(letters).stopped_at == 3


def test_a_stop_token_gives_no_text_unless_stops_are_included() -> None:
    pipeline = smollm2.text_pipeline()
    ids = tokens("hello,")
    for include, text in ((False, "hello"), (True, "hello,")):
        choice = pipeline.choice(stop_token_ids=[ids[-1]], include_stop=include)
        assert choice.push(ids, final=True).text == text
        assert choice.tokens == 2


def test_a_stop_token_in_the_middle_is_ordinary_text() -> None:
    ids = tokens("hello,")
    choice = smollm2.text_pipeline().choice(stop_token_ids=[ids[-1]])
    assert choice.push([*ids, *tokens(" red")], final=True).text == "hello, red"


@given(
    st.lists(st.sampled_from([10813, 121, 250, 28, 2382, 33, END]), max_size=12),
    st.lists(st.integers(0, 12)),
    st.lists(st.sampled_from([",", " red", "\U0001fae0", "1", "\ufffd"]), max_size=3),
    st.integers(0, 4),
)
def test_text_and_stop_do_not_depend_on_the_cut(
    ids: list[int], at: list[int], stop: list[str], min_tokens: int
) -> None:
    pipeline = smollm2.text_pipeline()
    whole = pipeline.choice(stop=stop, min_tokens=min_tokens).push(ids, final=True)
    choice = pipeline.choice(stop=stop, min_tokens=min_tokens)
    pieces = [choice.push(part) for part in cut(ids, at)]
    pieces.append(choice.push((), final=True))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert pieces[-1].stopped_at == whole.stopped_at


def test_token_texts_and_bytes_are_told_for_logprobs() -> None:
    pipeline = smollm2.text_pipeline()
    assert (pipeline.token_text(END), pipeline.token_bytes(10813)) == ("<|im_end|>", b"\xf0\x9f")
    assert pipeline.decode([28120, END]) == "hello"
    assert pipeline.decode([28120, END], skip_special=False) == "hello<|im_end|>"
    assert pipeline.end_token_ids == (0, END)
