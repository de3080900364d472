"""Connections: what is no HTTP gets our error form, and nobody may dawdle over a request's head."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final, cast

from headrace_contracts.codes import Code
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace_gateway.http.errors import HttpError, bad_request, error_body

HEAD_WITHIN_S: Final = 20.0
"""From a connection's start, or a request's first byte, to the end of the request's headers."""
_BODY_WRITER: Final = "headrace.body_writer"
"""Our extension of a request's scope."""
_STATUS_LINES: Final = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\n",
}


class BodyWriter:
    """Writes pieces of a chunked body that has begun, at once and past all layers.

    Layers look at the head of a response only, and every one of them costs each piece a
    coroutine. The head and the end of the body go the usual way.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def ready(self) -> bool:
        """Whether a piece may be written now. If not, it has to go the usual way: the client does
        not read fast enough, or has left; the response has not begun, or is over.
        """
        cycle = self._cycle
        return not (
            cycle.flow.write_paused
            or cycle.disconnected
            or cycle.response_complete
            or not cycle.response_started
            or not cycle.chunked_encoding
        )

    def write(self, piece: bytes) -> None:
        """Writes a piece; only when ``ready``, and not an empty one, which would end the body."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def body_writer_of(scope: MutableMapping[str, Any]) -> BodyWriter | None:
    """The writer of this request's response; None on another server, and where a body is
    forbidden.
    """
    found = scope.get("extensions", {}).get(_BODY_WRITER)
    return found if isinstance(found, BodyWriter) else None


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a limit that it lacks and errors that SDKs can read."""

    _waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()
        scope = cast("MutableMapping[str, Any]", self.scope)
        if self.cycle.scope is scope and scope["method"] != "HEAD":
            scope["extensions"] = {_BODY_WRITER: BodyWriter(self.cycle)}

    def send_400_response(self, msg: str) -> None:
        self._head_is_here()
        self._refuse(bad_request("This is not a valid HTTP request."))

    def _await_head(self) -> None:
        self._head_is_here()
        self._waits = self.loop.call_later(HEAD_WITHIN_S, self._dawdles)

    def _head_is_here(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _dawdles(self) -> None:
        self._waits = None
        if not self.transport.is_closing():
            self._refuse(
                HttpError(
                    Code.BODY_TIMEOUT,
                    f"The request's headers did not arrive within {HEAD_WITHIN_S:g} seconds.",
                )
            )

    def _refuse(self, error: HttpError) -> None:
        body = error_body(error)
        self.transport.write(
            _STATUS_LINES[error.status]
            + b"content-type: application/json\r\ncontent-length: "
            + str(len(body)).encode("ascii")
            + b"\r\nconnection: close\r\n\r\n"
            + body
        )
        self.transport.close()
