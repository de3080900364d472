"""Errors of the engine. A branch says whose move is next.

EngineError
├── RequestRejected     can never run; the caller changes it
├── RequestDropped      was fine; the gateway may retry         EngineDraining
├── ModelRejected       the engine refuses to start with these weights
├── JournalRejected     a file is no journal, or not a whole one; nothing of it is believed
└── EngineFailed        the process is not trustworthy; it exits
    └── EngineDied      it is gone without a word: what it did last is not known
"""

from __future__ import annotations

from headrace_contracts.codes import Code


class EngineError(Exception):
    """Root of what the engine raises on purpose."""

    code: Code = Code.INTERNAL


class RequestRejected(EngineError):
    """This request can never run here; the message carries the numbers."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class RequestDropped(EngineError):
    """Nothing is wrong with the request; somebody else may run it."""


class EngineDraining(RequestDropped):
    """The door is closed."""

    code = Code.DRAINING


class ModelRejected(EngineError):
    """Corrupt, truncated, mismatched, missing or unknown weights: names file and tensor."""


class JournalRejected(EngineError):
    """Truncated, foreign, of another version, or contradicts itself; says where."""

    def __init__(self, message: str, *, cut_off: bool = False) -> None:
        """``cut_off``: what comes before the place is whole, and could be had."""
        super().__init__(message)
        self.cut_off = cut_off


class EngineFailed(EngineError):
    """The device or an invariant broke: the process exits and its requests migrate."""

    code = Code.ENGINE_FAILED


class EngineDied(EngineFailed):
    """The engine's process is gone, or its pipe is, before it said what became of its requests."""
