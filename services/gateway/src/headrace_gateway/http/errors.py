"""Everything that can go wrong becomes one error body here, in the OpenAI form.

HttpError    a fault that the edge itself finds
ClientLeft   nobody is there to answer
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import orjson
from headrace_contracts.codes import STATUS, Code, FinishReason
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace_gateway.errors import GatewayError

_MESSAGE_CHARACTERS: Final = 2000
_MAX_ADVISED_S: Final = 120
"""OpenAI's clients give up on a longer advice, Anthropic's sleep through it."""
_NEVER_AGAIN: Final = frozenset(
    {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.BODY_TIMEOUT, Code.CONFLICT, Code.POISONED}
)
"""Clients would repeat these by their status alone, to no use."""


class ClientLeft(Exception):
    """The connection is gone before the answer."""


class HttpError(Exception):
    """A refusal by the edge. ``status`` only where HTTP knows more than the code table."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        param: str | None = None,
        status: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.status = STATUS[code].http if status is None else status
        self.retry_after_s = retry_after_s


def bad_request(message: str, param: str | None = None) -> HttpError:
    """A body that is not what the route takes."""
    return HttpError(Code.INVALID_REQUEST, message, param=param)


def unsupported(message: str, param: str) -> HttpError:
    """A field that is known and not offered."""
    return HttpError(Code.UNSUPPORTED_PARAMETER, message, param=param)


def internal_error() -> HttpError:
    """What a caller hears of a fault of ours: nothing of its inside."""
    return HttpError(Code.INTERNAL, "The server failed to answer this request.")


def http_error(error: GatewayError | HttpError | HTTPException) -> HttpError:
    """One form for what the edge, the service and the framework raise."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, GatewayError):
        return HttpError(
            error.code, error.message, param=error.param, retry_after_s=error.retry_after_s
        )
    match error.status_code:
        case 404:
            return HttpError(Code.NOT_FOUND, "There is nothing at this path.")
        case 405:
            return HttpError(Code.METHOD_NOT_ALLOWED, "This path does not take this method.")
        case status if status < 500:
            return HttpError(Code.INVALID_REQUEST, HTTPStatus(status).phrase, status=status)
        case _:
            return internal_error()


def ended_badly(reason: FinishReason, code: Code | None, message: str) -> HttpError | None:
    """The error of a choice that ended neither by itself nor by its length."""
    match reason:
        case FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.CANCELLED:
            return HttpError(code or Code.CANCELLED, message or "The request was cancelled.")
        case FinishReason.DEADLINE:
            return HttpError(
                code or Code.DEADLINE_EXCEEDED, message or "The request's deadline has passed."
            )
        case FinishReason.ERROR:
            return HttpError(code or Code.INTERNAL, message or "The request failed.")


def error_body(error: HttpError, *, resume: Mapping[str, str] | None = None) -> bytes:
    """The JSON of an error: always valid UTF-8, whatever the message quotes.

    ``resume``: where a stream goes on that this error ends here.
    """
    told: dict[str, object] = {
        "message": _printable(error.message),
        "type": STATUS[error.code].openai_type,
        "param": None if error.param is None else _printable(error.param),
        "code": error.code.wire_name,
    }
    if resume is not None:
        told["resume"] = resume
    return orjson.dumps({"error": told})


def error_response(error: HttpError, *, headers: dict[str, str] | None = None) -> Response:
    """The whole answer, with what clients need in order to decide on a retry."""
    return Response(
        error_body(error),
        status_code=error.status,
        headers={**_retry_headers(error), **(headers or {})},
        media_type="application/json",
    )


def _retry_headers(error: HttpError) -> dict[str, str]:
    headers: dict[str, str] = {}
    if error.status in (429, 503):
        wait_s = max(1, error.retry_after_s or 1)
        headers["retry-after"] = str(wait_s)
        headers["retry-after-ms"] = str(wait_s * 1000)
        if wait_s > _MAX_ADVISED_S:
            headers["x-should-retry"] = "false"
    if error.code in _NEVER_AGAIN:
        headers["x-should-retry"] = "false"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.code in (Code.DRAINING, Code.BODY_TIMEOUT) or error.status == 431:
        headers["connection"] = "close"
    return headers


def _printable(text: str) -> str:
    """Lone surrogates and control characters escaped, at a bounded length."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return whole if len(whole) <= _MESSAGE_CHARACTERS else whole[:_MESSAGE_CHARACTERS] + "…"
