"""The outermost layer of a request: its id, its headers, its log line, and the last catch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_kit.traces import NO_SPAN, Span
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace_gateway.http.errors import ClientLeft, error_response, internal_error
from headrace_gateway.http.ports import Reports
from headrace_gateway.metrics import GatewayMetrics

_KEY: Final = "headrace.context"
_SANE_LABEL: Final = re.compile(r"[A-Za-z0-9._:\-]{1,128}")
LEFT: Final = 499
"""Status in logs and metrics of a request whose client went away."""
_PROBES: Final = frozenset({"/health/live", "/health/ready", "/metrics"})
"""Asked every few seconds by machines: while all is well, that is no news."""
_OK: Final = 200

log = get_logger(__name__)


@dataclass(slots=True)
class Context:
    """What is known of one HTTP request while it lasts."""

    started_s: float
    """Monotonic."""
    label: str | None
    """The caller's own ``x-request-id``, if sane. Never a key to anything."""
    id: str = field(default_factory=lambda: f"req-{uuid4().hex}")
    """Ours; a generation puts its request id here."""
    status: int | None = None
    """None until the response has started."""
    left: bool = False
    code: str | None = None
    """Of the error that was answered."""
    generates: bool = False
    """Whether a call was admitted: its span then has the call's name."""
    span: Span = NO_SPAN
    end_span: Callable[[], None] | None = None
    """Tells the span what is known here, and ends it; None where there is none, or no more."""
    recorded: bool = False

    def over(self) -> None:
        """All that the span is to tell is known."""
        end, self.end_span = self.end_span, None
        if end is not None:
            end()


def context_of(scope: Scope) -> Context:
    """The context that ``ContextLayer`` made for this request."""
    found = scope[_KEY]
    assert isinstance(found, Context)
    return found


class ContextLayer:
    """Pure ASGI, so that streams pass unbuffered. A request is counted, logged and traced before
    the end of its answer goes out: who has it whole finds it there.
    """

    def __init__(
        self, app: ASGIApp, *, clock: Clock, metrics: GatewayMetrics, readiness: Reports
    ) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics
        self._readiness = readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = Context(self._clock.monotonic(), _sane_label(Headers(scope=scope)))
        scope[_KEY] = context

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._add_headers(context, message)
            elif message["type"] == "http.response.body" and not message.get("more_body"):
                self._record(scope, context)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientLeft:
            context.left = True
        # The request boundary: whatever it was, the caller gets an answer and the log the cause.
        except Exception:
            log.exception(
                "http.failed", id=context.id, route=route_of(scope), trace_id=context.span.trace_id
            )
            if context.status is None:
                await error_response(internal_error())(scope, receive, send_with_headers)
        finally:
            self._record(scope, context)

    def _add_headers(self, context: Context, message: Message) -> None:
        context.status = message["status"]
        headers = MutableHeaders(scope=message)
        headers["x-request-id"] = context.label or context.id
        headers["x-headrace-request-id"] = context.id
        elapsed_s = self._clock.monotonic() - context.started_s
        headers["openai-processing-ms"] = str(round(elapsed_s * 1000))
        if self._readiness.draining:
            headers["connection"] = "close"

    def _record(self, scope: Scope, context: Context) -> None:
        """Once."""
        if context.recorded:
            return
        context.recorded = True
        context.over()
        status = LEFT if context.left or context.status is None else context.status
        seconds = self._clock.monotonic() - context.started_s
        route, method = route_of(scope), method_of(scope)
        self._metrics.http_requests.labels(route, status).inc()
        probe = route in _PROBES and status == _OK
        (log.debug if probe else log.info)(
            "http.finished",
            id=context.id,
            label=context.label,
            route=route,
            method=method,
            status=status,
            seconds=round(seconds, 4),
            trace_id=context.span.trace_id,
        )


def _sane_label(headers: Headers) -> str | None:
    given = headers.get("x-request-id")
    return given if given is not None and _SANE_LABEL.fullmatch(given) else None


def route_of(scope: Scope) -> str:
    """The route's pattern, never the path itself: labels stay few."""
    route = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else "unmatched"


def method_of(scope: Scope) -> str:
    """One of few words."""
    method = scope["method"]
    return method if method in {"GET", "HEAD", "POST", "DELETE", "OPTIONS"} else "other"
