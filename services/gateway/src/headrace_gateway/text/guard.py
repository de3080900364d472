"""Keeps what callers wrote from becoming control tokens inside a rendered template.

Each character that control tokens are made of (``<``, ``|``, ``>``, ...) is replaced, one for
one, by a private-use character that occurs nowhere else in the call. A template may trim, slice,
split or join guarded text as it likes: lengths are the same, and no control token can come of
it, alone or together with what stands beside it.

The assistant's own content keeps the markup that the template or the tokenizer knows, such as
``</think>``, because templates look for it there; special tokens are guarded in it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from headrace_gateway.text.errors import PromptRejected
from headrace_gateway.text.tokenizer import Tokenizer

MAX_DEPTH: Final = 32
"""Nesting of tool calls and template fields."""

_PRIVATE: Final = re.compile("[\U00100000-\U0010fffd]")
_PRIVATE_POINTS: Final = range(0x100000, 0x10FFFE)
_TAG: Final = re.compile(r"</?\w+>")


class Guard:
    """The replacement that is safe for one call."""

    def __init__(self, stand_ins: Mapping[str, str], kept: re.Pattern[str]) -> None:
        self._replace = {ord(char): stand_in for char, stand_in in stand_ins.items()}
        self._kept = kept
        self.restore: Mapping[int, int] = {
            ord(stand_in): ord(char) for char, stand_in in stand_ins.items()
        }
        """For ``str.translate``: puts the characters back."""

    def text(self, text: str) -> str:
        """Guards all of a text."""
        return text.translate(self._replace)

    def answer(self, text: str) -> str:
        """Guards an assistant's text except for its known markup."""
        pieces = self._kept.split(text)  # the pattern's one group: odd pieces are markup
        return "".join(
            piece if i % 2 else piece.translate(self._replace) for i, piece in enumerate(pieces)
        )

    def value(self, value: object) -> object:
        """Guards every text inside a JSON-like value, names of fields included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            fields = cast("Mapping[str, object]", value)
            return {self.text(name): self.value(inner) for name, inner in fields.items()}
        if isinstance(value, Sequence):
            return [self.value(inner) for inner in cast("Sequence[object]", value)]
        return value

    def message(self, message: Mapping[str, object]) -> dict[str, object]:
        """Guards a message; its role is one of a closed set, and stays."""
        guarded = {name: self.value(value) for name, value in message.items()}
        guarded["role"] = message["role"]
        if message["role"] == "assistant":
            guarded["content"] = self.answer(str(message["content"]))
        return guarded


class GuardFactory:
    """Knows one model's control tokens and template. Immutable."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        chars: set[str] = set()
        for token in tokenizer.control_tokens:
            signs = {char for char in token if not (char.isalnum() or char.isspace())}
            chars |= signs or {token[0]}
        self._chars = sorted(chars)
        known = {*tokenizer.control_tokens, *_TAG.findall(template)} - tokenizer.special_tokens
        # The longest first; with none, a pattern that never matches.
        kept = "|".join(re.escape(tag) for tag in sorted(known, key=len, reverse=True))
        self._kept = re.compile(f"({kept or '(?!)'})")
        self._taken = {ord(char) for char in _PRIVATE.findall(template)}

    def guard(self, values: Sequence[object]) -> Guard:
        """A guard whose stand-ins occur in none of these values.

        Raises PromptRejected when the values are nested too deep, or leave no character over.
        """
        taken = set(self._taken)
        for text in _texts(values, MAX_DEPTH):
            taken.update(map(ord, _PRIVATE.findall(text)))
        free = (point for point in _PRIVATE_POINTS if point not in taken)
        stand_ins = {char: chr(point) for char, point in zip(self._chars, free, strict=False)}
        if len(stand_ins) < len(self._chars):
            raise PromptRejected("The messages use every private character.", param="messages")
        return Guard(stand_ins, self._kept)


def _texts(value: object, depth: int) -> Iterator[str]:
    """Every text inside a JSON-like value."""
    if isinstance(value, str):
        yield value
        return
    if not isinstance(value, (Mapping, Sequence)):
        return
    if depth == 0:
        raise PromptRejected("A tool call or template field is nested too deep.", param="messages")
    if isinstance(value, Mapping):
        yield from (str(name) for name in cast("Mapping[object, object]", value))
        value = list(cast("Mapping[object, object]", value).values())
    for inner in cast("Sequence[object]", value):
        yield from _texts(inner, depth - 1)
