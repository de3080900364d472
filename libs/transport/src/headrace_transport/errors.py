"""What the wire raises.

TransportError
├── TransportUnavailable   the server's move: try again later
│   └── AccessDenied        it refuses our user or password, for now at least
├── ServerUnsuitable       the operator's move: the server, or how it is set up, cannot carry us
├── CommandFailed          a defect of ours, or foreign data under one of our keys
│   └── WrongType           a key is of another type
├── ForeignVersion         the operator's move: who wrote this speaks another wire version
└── SubmitRefused          the caller's move
    ├── QueueFull           come back later
    ├── ConcurrencyExceeded come back when one of the key's requests has ended
    ├── RequestConflict     use another id
    └── RecordRejected      change the record
"""

from __future__ import annotations

from typing import ClassVar

from headrace_contracts.codes import Code
from headrace_contracts.limits import WIRE_VERSION


class TransportError(Exception):
    """Root of the tree."""

    code: ClassVar[Code] = Code.INTERNAL


class TransportUnavailable(TransportError):
    """The server cannot be reached, or cannot write, for now."""

    code = Code.BACKEND_UNAVAILABLE


class AccessDenied(TransportUnavailable):
    """The server refuses our user or password. At start this is ``ServerUnsuitable``."""


class ServerUnsuitable(TransportError):
    """The server was refused at start."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


class CommandFailed(TransportError):
    """The server refused a command that should have worked."""


class WrongType(CommandFailed):
    """A key is of another type than ours."""


class ForeignVersion(TransportError):
    """What was read is of another wire version, and so is who wrote it; or it is damaged, and has
    none (0).
    """

    def __init__(self, what: str, *, version: int) -> None:
        super().__init__(
            f"{what} has wire version {version}, and {WIRE_VERSION} is read here"
            if version
            else f"{what} is damaged"
        )
        self.version = version


class SubmitRefused(TransportError):
    """Nothing was queued."""


class QueueFull(SubmitRefused):
    """The model's queue is at its bound."""

    code = Code.QUEUE_FULL

    def __init__(self, *, depth: int, limit: int) -> None:
        super().__init__(f"{depth} requests are queued and the limit is {limit}")
        self.depth = depth
        self.limit = limit


class ConcurrencyExceeded(SubmitRefused):
    """The API key has as many live requests as it may."""

    code = Code.RATE_LIMIT_EXCEEDED

    def __init__(self, *, running: int, limit: int) -> None:
        super().__init__(f"{running} requests of this key are live and its limit is {limit}")
        self.running = running
        self.limit = limit


class RequestConflict(SubmitRefused):
    """The id belongs to a request that has finished."""

    code = Code.CONFLICT

    def __init__(self, *, request: str) -> None:
        super().__init__(f"request {request} has finished; its id cannot be used again")
        self.request = request


class RecordRejected(SubmitRefused):
    """A name or a size that may not enter a key or a stream."""

    code = Code.INVALID_REQUEST
