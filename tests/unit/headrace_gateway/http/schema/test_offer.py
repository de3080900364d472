"""What is neutral, what is refused, what is unknown."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code
from headrace_gateway.http.errors import HttpError
from headrace_gateway.http.schema.chat import ChatFields
from headrace_gateway.http.schema.completions import CompletionFields
from headrace_gateway.http.schema.offer import (
    HINTS,
    NEUTRAL_CHAT,
    NEUTRAL_COMPLETION,
    check_offered,
    unknown_fields,
)


@pytest.mark.parametrize("name", sorted(NEUTRAL_CHAT))
def test_null_and_each_neutral_value_ask_for_nothing(name: str) -> None:
    for value in (None, *NEUTRAL_CHAT[name]):
        check_offered({name: value}, NEUTRAL_CHAT)


@pytest.mark.parametrize("name", sorted(NEUTRAL_CHAT))
def test_any_other_value_is_refused_by_name(name: str) -> None:
    with pytest.raises(HttpError) as refusal:
        check_offered({name: {"something": "else"}}, NEUTRAL_CHAT)
    assert (refusal.value.code, refusal.value.param) == (Code.UNSUPPORTED_PARAMETER, name)


def test_zero_is_not_false() -> None:
    with pytest.raises(HttpError):
        check_offered({"store": 0}, NEUTRAL_CHAT)


def test_no_field_is_both_offered_and_refused() -> None:
    assert not ChatFields.model_fields.keys() & NEUTRAL_CHAT.keys()
    assert not CompletionFields.model_fields.keys() & NEUTRAL_COMPLETION.keys()


def test_unknown_names_are_sorted_and_hints_are_known() -> None:
    body = {"b": 1, "a": 1, "tools": None, "n": 1, **dict.fromkeys(HINTS, "x")}
    assert unknown_fields(body, ["n"], NEUTRAL_CHAT, strict=False) == ("a", "b")
    with pytest.raises(HttpError) as refusal:
        unknown_fields(body, ["n"], NEUTRAL_CHAT, strict=True)
    assert refusal.value.param == "a"


def test_unknown_stream_options_are_named_with_their_place() -> None:
    options = {"include_usage": True, "include_obfuscation": False, "z": 1, "continuous_stats": 1}
    body = {"x": 1, "stream_options": options}
    names = ("x", "stream_options.continuous_stats", "stream_options.z")
    assert unknown_fields(body, ["stream_options"], NEUTRAL_CHAT, strict=False) == names
    with pytest.raises(HttpError) as refusal:
        unknown_fields({"stream_options": {"z": 1}}, ["stream_options"], NEUTRAL_CHAT, strict=True)
    assert refusal.value.param == "stream_options.z"
    assert unknown_fields({"stream_options": None}, ["stream_options"], {}, strict=True) == ()
