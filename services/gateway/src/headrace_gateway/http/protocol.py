"""Connections: what is no HTTP gets our error form; a request's head comes soon, and is bounded.

Neither needs a key, so neither may cost a gateway its memory or its other clients' time.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Final, cast

import httptools
from headrace_contracts.codes import Code
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from headrace_gateway.http.errors import HttpError, bad_request, error_body

HEAD_WITHIN_S: Final = 20.0
"""From a connection's start, or a request's first byte, to the end of the request's headers. So
long may the rest of a body take, too, whose request is answered.
"""
MAX_HELD_BYTES: Final = 64 * 1024
"""What the parser may be given and make nothing of: the middle of headers or trailers. It keeps
that, and copies all of it for each piece that comes.
"""
MAX_PIPELINED: Final = 8
"""Requests that wait for the answer to an earlier one while the connection is still read from."""
PARSED_BYTES: Final = 4 * 1024
"""What the parser gets at once. Of a read's bytes each twenty may be a request, and one that waits
takes kilobytes.
"""
_BODY_WRITER: Final = "headrace.body_writer"
"""Our extension of a request's scope."""
_STATUS_LINES: Final = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    408: b"HTTP/1.1 408 Request Timeout\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
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


class _Flow(FlowControl):
    """Reads no more while bytes that came lie unparsed, whoever asks."""

    holds = False

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()


def _until_close(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """The application for a client that knows no chunks: a body without a length ends with the
    connection (RFC 9112, 6.1 and 6.3).
    """

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        sized = True

        async def send_whole(message: Any) -> None:
            nonlocal sized
            if message["type"] == "http.response.start":
                sized = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not sized:
                    cycle.chunked_encoding = False
            elif not sized:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_whole)

    return answers


class EdgeProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits that it lacks and errors that SDKs can read."""

    _waits: asyncio.TimerHandle | None = None
    _held = 0
    """Bytes since the parser last made something of them."""
    _answering: RequestResponseCycle | None = None
    """The newest request whose answer may begin; those behind it wait for its end."""
    _flow: _Flow
    _unread = b""
    """Came, and waits until fewer requests do."""
    _tunnel = False
    """Whether the last request asked for one: it is refused, and what follows was not meant for us."""
    _in_head = False
    """Whether the header fields that come are a head's, not trailers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._flow = self.flow = _Flow(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)
        answering = self._answering
        if answering is not None and self._is_answering():
            # uvicorn tells the newest request alone, and that one may wait behind this one.
            answering.disconnected = True
            answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._read()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is no header: by then the head may have been judged
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._held = 0
        self._in_head = True
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._held = 0
        self._in_head = False
        if self._asks_for_upgrade():
            return
        self._head_is_here()
        super().on_headers_complete()
        if self.scope["method"] == "CONNECT":
            self.cycle.keep_alive = False
            self._tunnel = True
        if len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # who has left is seen by reading alone
        scope = cast("MutableMapping[str, Any]", self.scope)
        if self.cycle.scope is scope and scope["method"] != "HEAD":
            scope["extensions"] = {_BODY_WRITER: BodyWriter(self.cycle)}

    def on_body(self, body: bytes) -> None:
        self._held = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._held = 0
        if self._asks_for_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self._head_is_here()
            self._await_next()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and self.cycle.more_body:
            self._await_head()
        self._read()

    def send_400_response(self, msg: str) -> None:
        self._head_is_here()
        self._refuse(bad_request("This is not a valid HTTP request."))

    def _read(self) -> None:
        """As far as requests may wait; the rest when fewer do."""
        unread, at = self._unread, 0
        if unread:
            self._unset_keepalive_if_required()
        while at < len(unread) and len(self.pipeline) < MAX_PIPELINED:
            if self._tunnel or self.transport.is_closing():
                at = len(unread)
                break
            piece = memoryview(unread)[at : at + PARSED_BYTES]
            at += len(piece)
            self._held += len(piece)
            self._parse(piece)
            if self._held > MAX_HELD_BYTES and not self.transport.is_closing():
                self._refuse(
                    HttpError(
                        Code.INVALID_REQUEST,
                        f"The headers are larger than {MAX_HELD_BYTES} bytes.",
                        status=431,
                    )
                )
        self._unread = unread[at:]
        held, self._flow.holds = self._flow.holds, bool(self._unread)
        if self._flow.holds:
            self.flow.pause_reading()
        elif held and len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def _parse(self, rest: memoryview) -> None:
        try:
            while True:
                try:
                    self.parser.feed_data(rest)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    if not self._asks_for_upgrade():
                        return
                    rest = rest[upgrade.args[0] :]
                    self._read_without_upgrade()
        except httptools.HttpParserError:
            self.send_400_response("")

    def _asks_for_upgrade(self) -> bool:
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _read_without_upgrade(self) -> None:
        """Nothing is upgraded here, and a client that asks for it (Java's asks for "h2c") gets its answer
        as if it had not asked (RFC 9110, 7.8). The parser takes no body after such a head: a new one
        gets the head without that field.
        """
        version = self.parser.get_http_version().encode("ascii")
        head = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version)
        for name, value in self.headers:
            if name != b"upgrade":
                head += b"%b: %b\r\n" % (name, value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(head + b"\r\n")

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        if cycle.scope["http_version"] < "1.1":
            app = _until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _await_head(self) -> None:
        self._head_is_here()
        self._waits = self.loop.call_later(HEAD_WITHIN_S, self._dawdles)

    def _head_is_here(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _await_next(self) -> None:
        """As after an answer; what came since has ended that wait."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _dawdles(self) -> None:
        self._waits = None
        if self._is_answering():
            self._await_head()
        elif not self.transport.is_closing():
            self._refuse(
                HttpError(
                    Code.BODY_TIMEOUT,
                    f"The request's headers did not arrive within {HEAD_WITHIN_S:g} seconds.",
                )
            )

    def _refuse(self, error: HttpError) -> None:
        answering = self._answering
        if answering is not None and self._is_answering():
            its_own = answering is self.cycle and answering.more_body
            if answering.response_started or not its_own:
                self.transport.close()  # words of ours would stand in the middle of an answer
                return
            answering.disconnected = True  # its body is at fault: these words are its answer
            answering.message_event.set()
        body = error_body(error)
        self.transport.write(
            _STATUS_LINES[error.status]
            + b"content-type: application/json\r\ncontent-length: "
            + str(len(body)).encode("ascii")
            + b"\r\nconnection: close\r\n\r\n"
            + body
        )
        self.transport.close()
