"""Server-sent events: a running call written out as it comes, until its end or its client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace_gateway.errors import GatewayError, HandedOver
from headrace_gateway.http.context import context_of
from headrace_gateway.http.disconnect import while_connected
from headrace_gateway.http.errors import (
    ClientLeft,
    HttpError,
    ended_badly,
    error_body,
    http_error,
    internal_error,
)
from headrace_gateway.http.ports import RunningCall
from headrace_gateway.http.protocol import BodyWriter, body_writer_of
from headrace_gateway.inference.calls import Delta, Done, KeepAlive, UsageTotal

HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",
}
MAX_CURSOR: Final = 1024
"""Characters of a cursor. Calls of hundreds of choices have longer ones, on every event; their
streams go without, and cannot be resumed."""
PING: Final = b": ping\n\n"
LAST: Final = b"data: [DONE]\n\n"


class Chunks(Protocol):
    """How a dialect says what happened; each item is the JSON of one chunk."""

    def delta(self, event: Delta) -> Sequence[bytes]: ...

    def usage(self, usage: UsageTotal) -> bytes | None:
        """The usage chunk, if it is wanted."""
        ...


class EventStream(Response):
    """Streams a call that was admitted. The call is closed however the response ends."""

    def __init__(
        self, running: RunningCall, chunks: Chunks, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status_code = 200
        self.background = None
        self._running = running
        self._chunks = chunks
        self.init_headers({**HEADERS, **(headers or {})})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        self.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (headers or {}).items()
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._write(send, scope))
        except ClientLeft:
            context_of(scope).left = True
        finally:
            await self._running.aclose()

    async def _write(self, send: Send, scope: Scope) -> None:
        """The last words travel with the end of the body: who has read them has the whole answer."""
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        writer = body_writer_of(scope)
        if writer is not None:
            self._running.follow(lambda delta: self._push(writer, delta))
        try:
            last = await self._write_events(send)
        except HandedOver as error:
            place = place_of(self._running.id, self._running.cursor)
            last = data_event(error_body(http_error(error), resume=place))
        except (GatewayError, HttpError) as error:
            last = data_event(error_body(http_error(error)))
        # The request boundary once more: here the status is out, so the stream has to say it.
        except Exception as error:
            context_of(scope).span.fail(type(error).__name__)
            await _send(send, data_event(error_body(internal_error())), more=False)
            raise
        await _send(send, last, more=False)

    async def _write_events(self, send: Send) -> bytes:
        """All but the last words, which it returns."""
        last = b""
        async for event in self._running:
            match event:
                case Delta():
                    await _send(send, self._delta(event))
                    _raise_if_ended_badly(event)
                case KeepAlive():
                    await _send(send, PING)
                case Done():
                    usage = self._chunks.usage(event.usage)
                    last = (data_event(usage) if usage else b"") + LAST
        return last

    def _push(self, writer: BodyWriter, delta: Delta) -> bool:
        if not writer.ready:
            return False
        piece = self._delta(delta)
        if piece:
            writer.write(piece)
        return True

    def _delta(self, event: Delta) -> bytes:
        """One write per delta. Only its last chunk carries the cursor: before that chunk
        has arrived whole, a resume must begin at the delta before.
        """
        chunks = self._chunks.delta(event)
        if not chunks:
            return b""
        *before, last = chunks
        return b"".join(data_event(chunk) for chunk in before) + data_event(
            last, cursor=self._running.cursor
        )


def place_of(request: str, cursor: str) -> dict[str, str] | None:
    """Where the client reads on, at any gateway; None where the stream told no cursors."""
    if len(cursor) > MAX_CURSOR:
        return None
    path = f"/v1/requests/{request}/events?after={cursor}"
    return {"id": request, "after": cursor, "path": path}


def data_event(data: bytes, *, cursor: str = "") -> bytes:
    """One event. ``data`` is JSON, so it holds no line break."""
    if cursor and len(cursor) <= MAX_CURSOR:
        return b"id: " + cursor.encode("ascii") + b"\ndata: " + data + b"\n\n"
    return b"data: " + data + b"\n\n"


def _raise_if_ended_badly(event: Delta) -> None:
    if event.finish is not None:
        error = ended_badly(event.finish, event.code, event.message)
        if error is not None:
            raise error


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    if body or not more:
        await send({"type": "http.response.body", "body": body, "more_body": more})
