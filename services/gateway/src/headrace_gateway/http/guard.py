"""The door: every path needs a key, unless it is on the list below. It opens before the body is read."""

from __future__ import annotations

from typing import Final

from headrace_contracts.codes import Code
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_gateway.errors import GatewayError
from headrace_gateway.http.errors import HttpError, error_response, http_error
from headrace_gateway.http.ports import Authenticates
from headrace_gateway.http.ports import Scope as KeyScope
from headrace_gateway.inference.calls import Caller

OPEN_PATHS: Final = frozenset({"/health/live", "/health/ready"})
"""All paths that answer without a key; ``/metrics`` joins them when its setting says so."""
MAX_HEADER_BYTES: Final = 32 * 1024
"""All header names and values of one request together."""
_OPEN_METHODS: Final = frozenset({"GET", "HEAD"})
_KEY: Final = "headrace.caller"


def permitted(request: Request, auth: Authenticates, scope: KeyScope) -> Caller:
    """Who calls, behind the guard. Raises ``PermissionDenied`` where the key lacks the scope."""
    caller = request.scope[_KEY]
    assert isinstance(caller, Caller)
    auth.require(caller, scope)
    return caller


class Guard:
    """Denies by default: unknown paths, documents and routes added tomorrow are closed as well."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        auth: Authenticates,
        open_paths: frozenset[str],
    ) -> None:
        self._app = app
        self._auth = auth
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            _check_header_bytes(scope)
            if not self._is_open(scope):
                scope[_KEY] = await self._authenticate(Headers(scope=scope))
        except (GatewayError, HttpError) as error:
            await error_response(http_error(error))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["path"] in self._open_paths and scope["method"] in _OPEN_METHODS

    async def _authenticate(self, headers: Headers) -> Caller:
        """``Authorization: Bearer KEY``, else ``x-api-key: KEY``. Header text is latin-1 bytes."""
        bearer = headers.get("authorization")
        token = headers.get("x-api-key")
        if bearer is None and token is not None:
            return await self._auth.token(token.encode("latin-1"))
        return await self._auth.bearer(None if bearer is None else bearer.encode("latin-1"))


def _check_header_bytes(scope: Scope) -> None:
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADER_BYTES:
        raise HttpError(
            Code.INVALID_REQUEST,
            f"The headers hold {size} bytes; the limit is {MAX_HEADER_BYTES}.",
            status=431,
        )
