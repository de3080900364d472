"""A server span for each request that came through the door, below its caller's."""

from __future__ import annotations

from typing import Final

from headrace_kit.traces import NoSpan, Tracing
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace_gateway.http.context import LEFT, Context, context_of, method_of, route_of
from headrace_gateway.http.errors import ClientLeft

_SERVER_FAULT: Final = 500
_TRACED: Final = "/v1/"
"""Probes and scrapes leave no trace."""


class TraceLayer:
    """Stands behind the guard: who has no key begins no trace. Pure ASGI, nothing for a chunk."""

    def __init__(self, app: ASGIApp, *, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        parent = Headers(scope=scope).get("traceparent", "")
        if not self._tracing.on or not scope["path"].startswith(_TRACED):
            context.span = NoSpan(parent)
            await self._app(scope, receive, send)
            return
        context.span = self._tracing.begin(method_of(scope), kind="server", parent=parent)
        context.end_span = lambda: _end(scope, context)
        try:
            await self._app(scope, receive, send)
        except ClientLeft:
            context.left = True
            raise
        except BaseException as error:
            context.span.fail(type(error).__name__)
            raise
        finally:
            context.over()


def _end(scope: Scope, context: Context) -> None:
    _tell(scope, context)
    context.span.end()


def _tell(scope: Scope, context: Context) -> None:
    span = context.span
    if not span.recording:
        return
    method, route = method_of(scope), route_of(scope)
    status = LEFT if context.left else context.status
    if not context.generates:
        span.rename(f"{method} {route}")
    span.set({"http.request.method": method, "http.route": route, "headrace.request": context.id})
    if context.label is not None:
        span.set({"headrace.request_label": context.label})
    if status is not None:
        span.set({"http.response.status_code": status})
    if context.code is None:
        return
    if status is None or status >= _SERVER_FAULT:
        span.fail(context.code)
    else:
        span.set({"error.type": context.code})
