"""Cross-origin rules: outside the guard, since a preflight carries no key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from headrace_gateway.http.errors import bad_request, error_response

_METHODS: Final = ("GET", "POST", "DELETE")
_EXPOSED: Final = (
    "x-request-id",
    "x-headrace-request-id",
    "x-headrace-ignored",
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "idempotent-replayed",
)


class Cors(CORSMiddleware):
    """Starlette's rules, with refusals in our error form. Never with credentials (cookies)."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=tuple(origins),
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code != 400:
            return answer
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.startswith("access-control-") or name == "vary"
        }
        return error_response(
            bad_request("This origin, method or header is not allowed."), headers=kept
        )
