"""Errors that only the offline API raises; the rest of its errors are the engine's own.

EngineError
├── RequestRejected
│   └── PromptTooLong   the prompt is longer than what one sequence may have, or than the cache
├── RequestDropped
│   └── EngineAsleep    ask again after ``wakeup``
└── RequestFailed       this one broke while it ran; others go on
"""

from __future__ import annotations

from typing import assert_never

from headrace_contracts.codes import Code, FinishReason

from headrace_engine.errors import (
    EngineDraining,
    EngineError,
    EngineFailed,
    RequestDropped,
    RequestRejected,
)
from headrace_engine.state.outputs import RowEnd


class PromptTooLong(RequestRejected):
    """With one new token the prompt would not fit; ``code`` says what it would not fit in."""

    def __init__(self, code: Code, message: str, *, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(code, message)
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens
        """Tokens that prompt and output may have together."""


class EngineAsleep(RequestDropped):
    """The engine sleeps, or is taking new weights."""

    code = Code.DRAINING


class RequestFailed(EngineError):
    """Not the caller's mistake: its numbers were not finite, or memory could not be had."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message or f"the request failed: {code.wire_name}")
        self.code = code


def failure_of(end: RowEnd) -> EngineError | None:
    """What a reader is told of an end, or None for one that its caller wanted or set."""
    match end.reason:
        case FinishReason.STOP | FinishReason.LENGTH | FinishReason.DEADLINE:
            return None
        case FinishReason.CANCELLED:
            return EngineDraining(end.message) if end.code is Code.DRAINING else None
        case FinishReason.ERROR:
            return _error(end.code or Code.INTERNAL, end.message)
        case _:
            assert_never(end.reason)


def _error(code: Code, message: str) -> EngineError:
    if code is Code.ENGINE_FAILED:
        return EngineFailed(message)
    if code is Code.DRAINING:
        return EngineDraining(message)
    if code in (Code.INVALID_REQUEST, Code.CONTEXT_LENGTH_EXCEEDED, Code.PROMPT_NEVER_FITS):
        return RequestRejected(code, message)
    return RequestFailed(code, message)
