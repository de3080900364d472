"""Pieces that the answers of both dialects are made of."""

from __future__ import annotations

import math
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson
from headrace_contracts.codes import FinishReason

from headrace_gateway.http.ports import RunningCall, UsageNumbers
from headrace_gateway.inference.calls import TokenInfo, TopToken, UsageTotal

_LEAST_LOGPROB: Final = -9999.0
"""JSON has no infinity; the OpenAI API writes this number for it."""


@dataclass(slots=True)
class Choice:
    """One choice of a call, gathered until its end."""

    text: list[str] = field(default_factory=list[str])
    tokens: list[TokenInfo] = field(default_factory=list[TokenInfo])
    finish: FinishReason | None = None


def finish_name(reason: FinishReason | None) -> str | None:
    """``finish_reason`` as clients know it; other ends are errors, not reasons."""
    match reason:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case _:
            return None


def head(running: RunningCall, kind: str) -> dict[str, object]:
    """What every answer and every chunk begins with."""
    return {
        "id": running.id,
        "object": kind,
        "created": running.created_s,
        "model": running.model,
        "system_fingerprint": running.system_fingerprint,
    }


class Envelope:
    """What the chunks of one stream have around their choice."""

    def __init__(self, running: RunningCall, kind: str, *, include_usage: bool) -> None:
        self._head = head(running, kind)
        self._include_usage = include_usage

    def chunk(self, choice: Mapping[str, object]) -> bytes:
        """The chunk of this choice."""
        return orjson.dumps(self._around(choice))

    def around_text(self, choice: Mapping[str, object], name: str) -> tuple[bytes, bytes]:
        """``around_text`` of the chunk of this choice."""
        return around_text(self._around(choice), name)

    def usage(self, usage: UsageTotal) -> bytes | None:
        """The last chunk, where the client asked for it."""
        if not self._include_usage:
            return None
        return orjson.dumps({**self._head, "choices": [], "usage": usage_body(usage)})

    def _around(self, choice: Mapping[str, object]) -> dict[str, object]:
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk


def around_text(chunk: Mapping[str, object], name: str) -> tuple[bytes, bytes]:
    """The JSON of ``chunk`` before and behind the text of its field ``name``, which is empty in it.

    Most chunks of a stream differ in that text alone.
    """
    before, hole, behind = orjson.dumps(chunk).partition(b'"%b":""' % name.encode())
    assert hole  # and never found inside another text, whose quotes are escaped
    return before + hole[:-2], behind


def usage_body(usage: UsageNumbers) -> dict[str, object]:
    """The ``usage`` object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_name(token: TokenInfo | TopToken) -> str:
    """The token's text; ``bytes:\\xf0\\x9f`` for one that is only part of a character."""
    try:
        return token.raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)


def finite(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


def chat_logprobs(tokens: Sequence[TokenInfo]) -> dict[str, object]:
    """``logprobs`` of a chat choice."""
    return {
        "content": [
            {**_chat_token(token), "top_logprobs": [_chat_token(top) for top in token.top]}
            for token in tokens
        ],
        "refusal": None,
    }


def _chat_token(token: TokenInfo | TopToken) -> dict[str, object]:
    return {
        "token": token_name(token),
        "logprob": finite(token.logprob),
        "bytes": list(token.raw),
    }


class CompletionLogprobs:
    """``logprobs`` of a completion choice, piece by piece: it remembers where the text stands."""

    def __init__(self) -> None:
        self._offset = 0
        """Characters of the choice's text before the next token."""
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")

    def add(self, tokens: Sequence[TokenInfo]) -> dict[str, object]:
        """The columns of these tokens."""
        return {
            "tokens": [token_name(token) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [_top_body(token) for token in tokens],
            "text_offset": [self._advance(token.raw) for token in tokens],
        }

    def _advance(self, raw: bytes) -> int:
        before = self._offset
        self._offset += len(self._decoder.decode(raw))
        return before


def _top_body(token: TokenInfo) -> dict[str, float]:
    """The candidates by name; the chosen token is always among them."""
    return {token_name(top): finite(top.logprob) for top in (*token.top, token)}
