"""The ``prompt`` of a completion: a text, token ids, or an array of either."""

from __future__ import annotations

from typing import cast

from headrace_gateway.http.errors import bad_request
from headrace_gateway.inference.calls import Prompt, TextPrompt, TokenPrompt

_WANTED = "prompt must be a string, an array of token ids, or an array of such prompts."


def prompts_of(value: object) -> tuple[Prompt, ...]:
    """One prompt or several, in order. Raises HttpError for any other shape."""
    if value is None:
        raise bad_request("prompt is required.", "prompt")
    if isinstance(value, str):
        return (_text(value, "prompt"),)
    if not isinstance(value, list):
        raise bad_request(_WANTED, "prompt")
    items = cast(list[object], value)
    if not items:
        raise bad_request("prompt must not be empty.", "prompt")
    if _is_id(items[0]):
        return (_tokens(items, "prompt"),)
    return tuple(_one(item, f"prompt[{index}]") for index, item in enumerate(items))


def _one(value: object, place: str) -> Prompt:
    if isinstance(value, str):
        return _text(value, place)
    if isinstance(value, list):
        return _tokens(cast(list[object], value), place)
    raise bad_request(_WANTED, place)


def _text(value: str, place: str) -> TextPrompt:
    if not value:
        raise bad_request(f"{place} must not be empty.", place)
    return TextPrompt(value)


def _tokens(value: list[object], place: str) -> TokenPrompt:
    if not value:
        raise bad_request(f"{place} must not be empty.", place)
    if set(map(type, value)) != {int}:  # by type, quickly: there may be a million
        raise bad_request(f"{place} must hold token ids only.", place)
    return TokenPrompt(cast(list[int], value))


def _is_id(value: object) -> bool:
    """An integer; whether the vocabulary has it is the admission's question."""
    return isinstance(value, int) and not isinstance(value, bool)
