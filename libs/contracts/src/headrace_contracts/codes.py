"""Error codes and what each becomes over HTTP and gRPC: the one table.

A code is a member of ``proto/headrace/v1/codes.proto``. Its wire name is the enum
name in lower case without the prefix, e.g. ``context_length_exceeded``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from headrace_contracts.pb import codes_pb2


class FinishReason(IntEnum):
    """Why one choice ended. ``codes.proto`` explains each."""

    STOP = codes_pb2.FINISH_REASON_STOP
    LENGTH = codes_pb2.FINISH_REASON_LENGTH
    CANCELLED = codes_pb2.FINISH_REASON_CANCELLED
    DEADLINE = codes_pb2.FINISH_REASON_DEADLINE
    ERROR = codes_pb2.FINISH_REASON_ERROR


class Code(IntEnum):
    """What went wrong. ``codes.proto`` groups them by whose move is next."""

    INVALID_REQUEST = codes_pb2.CODE_INVALID_REQUEST
    UNSUPPORTED_PARAMETER = codes_pb2.CODE_UNSUPPORTED_PARAMETER
    CONTEXT_LENGTH_EXCEEDED = codes_pb2.CODE_CONTEXT_LENGTH_EXCEEDED
    MODEL_NOT_FOUND = codes_pb2.CODE_MODEL_NOT_FOUND
    REQUEST_NOT_FOUND = codes_pb2.CODE_REQUEST_NOT_FOUND
    BODY_TOO_LARGE = codes_pb2.CODE_BODY_TOO_LARGE
    BODY_TIMEOUT = codes_pb2.CODE_BODY_TIMEOUT
    PROMPT_NEVER_FITS = codes_pb2.CODE_PROMPT_NEVER_FITS
    CONFLICT = codes_pb2.CODE_CONFLICT
    METHOD_NOT_ALLOWED = codes_pb2.CODE_METHOD_NOT_ALLOWED
    NOT_FOUND = codes_pb2.CODE_NOT_FOUND
    INVALID_API_KEY = codes_pb2.CODE_INVALID_API_KEY
    PERMISSION_DENIED = codes_pb2.CODE_PERMISSION_DENIED
    RATE_LIMIT_EXCEEDED = codes_pb2.CODE_RATE_LIMIT_EXCEEDED
    QUEUE_FULL = codes_pb2.CODE_QUEUE_FULL
    NO_ENGINE = codes_pb2.CODE_NO_ENGINE
    DRAINING = codes_pb2.CODE_DRAINING
    BACKEND_UNAVAILABLE = codes_pb2.CODE_BACKEND_UNAVAILABLE
    CANCELLED = codes_pb2.CODE_CANCELLED
    DEADLINE_EXCEEDED = codes_pb2.CODE_DEADLINE_EXCEEDED
    INTERNAL = codes_pb2.CODE_INTERNAL
    ENGINE_FAILED = codes_pb2.CODE_ENGINE_FAILED
    POISONED = codes_pb2.CODE_POISONED
    NUMERIC_FAILURE = codes_pb2.CODE_NUMERIC_FAILURE
    OUT_OF_MEMORY = codes_pb2.CODE_OUT_OF_MEMORY

    @property
    def wire_name(self) -> str:
        """The name callers see, e.g. ``queue_full``."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Status:
    """What one code becomes at the edges."""

    http: int
    grpc: str
    """Name of a ``grpc.StatusCode`` member."""
    openai_type: str
    """``error.type`` in an OpenAI error body."""


_INVALID: Final = "invalid_request_error"
_AUTH: Final = "authentication_error"
_LIMIT: Final = "rate_limit_error"
_SERVER: Final = "server_error"

STATUS: Final[dict[Code, Status]] = {
    Code.INVALID_REQUEST: Status(400, "INVALID_ARGUMENT", _INVALID),
    Code.UNSUPPORTED_PARAMETER: Status(400, "INVALID_ARGUMENT", _INVALID),
    Code.CONTEXT_LENGTH_EXCEEDED: Status(400, "INVALID_ARGUMENT", _INVALID),
    Code.PROMPT_NEVER_FITS: Status(400, "INVALID_ARGUMENT", _INVALID),
    Code.MODEL_NOT_FOUND: Status(404, "NOT_FOUND", _INVALID),
    Code.REQUEST_NOT_FOUND: Status(404, "NOT_FOUND", _INVALID),
    Code.NOT_FOUND: Status(404, "NOT_FOUND", _INVALID),
    Code.METHOD_NOT_ALLOWED: Status(405, "UNIMPLEMENTED", _INVALID),
    Code.BODY_TOO_LARGE: Status(413, "RESOURCE_EXHAUSTED", _INVALID),
    Code.BODY_TIMEOUT: Status(408, "DEADLINE_EXCEEDED", _INVALID),
    Code.CONFLICT: Status(409, "ALREADY_EXISTS", _INVALID),
    Code.INVALID_API_KEY: Status(401, "UNAUTHENTICATED", _AUTH),
    Code.PERMISSION_DENIED: Status(403, "PERMISSION_DENIED", "permission_error"),
    Code.RATE_LIMIT_EXCEEDED: Status(429, "RESOURCE_EXHAUSTED", _LIMIT),
    Code.QUEUE_FULL: Status(429, "RESOURCE_EXHAUSTED", _LIMIT),
    Code.NO_ENGINE: Status(503, "UNAVAILABLE", _SERVER),
    Code.DRAINING: Status(503, "UNAVAILABLE", _SERVER),
    Code.BACKEND_UNAVAILABLE: Status(503, "UNAVAILABLE", _SERVER),
    Code.CANCELLED: Status(499, "CANCELLED", _INVALID),
    Code.DEADLINE_EXCEEDED: Status(408, "DEADLINE_EXCEEDED", _INVALID),
    Code.INTERNAL: Status(500, "INTERNAL", _SERVER),
    Code.ENGINE_FAILED: Status(500, "INTERNAL", _SERVER),
    Code.POISONED: Status(500, "INTERNAL", _SERVER),
    Code.NUMERIC_FAILURE: Status(500, "INTERNAL", _SERVER),
    Code.OUT_OF_MEMORY: Status(503, "RESOURCE_EXHAUSTED", _SERVER),
}
