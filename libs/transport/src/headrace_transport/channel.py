"""Channel: one connection to the server, on which commands go out and replies come back in order.

redis-py opens it: URL, TLS, password, database. From then on the socket's bytes are ours, because
every token passes here: a command is one write, a reply one wake-up, and there is no task,
stream or timeout object between the socket and whoever waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, cast

import hiredis

from headrace_transport.replies import Argument, Reply


class ErrorReply(Exception):
    """The server refused a command."""

    @property
    def text(self) -> str:
        """What it said."""
        return str(self).removeprefix("ERR ")

    @property
    def code(self) -> str:
        """Its first word."""
        return str(self).partition(" ")[0]


class OutOfStep(Exception):
    """Bytes came that are no reply, or that nobody asked for. The connection is of no use."""


Answer: TypeAlias = "Reply | ErrorReply"

_pack = cast(
    "Callable[[tuple[Argument, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)
_UNFINISHED = object()
"""More bytes have to come before there is a reply."""


class Handshake(Protocol):
    """What we use of a redis-py connection, typed."""

    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...


class Channel(asyncio.Protocol):
    """One exchange at a time: the caller sees to that. Once lost it stays lost."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        """``writer`` of a connection on which nothing is under way: its socket is ours from here."""
        self._writer = writer  # held: it closes its socket when it is forgotten
        self._transport = cast("asyncio.Transport", writer.transport)
        self._parser = hiredis.Reader(replyError=ErrorReply, notEnoughData=_UNFINISHED)
        self._answers: list[Answer] = []
        self._missing = 0
        """Replies that the exchange under way still waits for."""
        self._done: asyncio.Future[list[Answer]] | None = None
        self._lost = asyncio.Event()
        self._transport.set_protocol(self)

    @classmethod
    async def open(cls, handshake: Handshake) -> Channel:
        """Connects. Raises what redis-py raises."""
        try:
            await handshake.connect()
        except BaseException:
            await handshake.disconnect(nowait=True)
            raise
        writer = handshake._writer  # pyright: ignore[reportPrivateUsage]
        assert writer is not None
        # it has no socket any more
        handshake._reader = handshake._writer = None  # pyright: ignore[reportPrivateUsage]
        return cls(writer)

    @property
    def is_open(self) -> bool:
        """Whether the server can still be there, as far as we know."""
        return not self._transport.is_closing()

    async def exchange(
        self, commands: Sequence[Sequence[Argument]], deadline_s: float
    ) -> list[Answer]:
        """One reply for each command. Whoever gives up in between has to ``drop`` the channel.

        Raises ``OSError`` when the connection is lost, and after ``deadline_s``.
        """
        if not self.is_open:
            raise ConnectionResetError("the server closed the connection")
        loop = asyncio.get_running_loop()
        self._answers, self._missing = [], len(commands)
        done = self._done = loop.create_future()
        alarm = loop.call_later(deadline_s, self._late)
        try:
            self._transport.write(b"".join([_pack(tuple(command)) for command in commands]))
            return await done
        finally:
            alarm.cancel()
            self._done = None

    def drop(self) -> None:
        """Closes at once, whatever is under way."""
        self._transport.abort()

    async def close(self) -> None:
        """Closes, and waits until the socket is closed."""
        self._transport.close()
        await self._lost.wait()

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Gives the waiting exchange its replies."""
        parser, answers = self._parser, self._answers
        try:
            parser.feed(data)
            while (answer := parser.gets()) is not _UNFINISHED:
                if not self._missing:
                    raise OutOfStep("a reply that nobody asked for")
                answers.append(cast("Answer", answer))
                self._missing -= 1
        except (hiredis.ProtocolError, OutOfStep) as error:
            self._fail(ConnectionResetError(f"the server is out of step: {error}"))
            self.drop()
            return
        if not self._missing and self._done is not None and not self._done.done():
            self._done.set_result(answers)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fails the waiting exchange."""
        self._lost.set()
        self._fail(ConnectionResetError(str(exc or "the server closed the connection")))

    def _late(self) -> None:
        self._fail(TimeoutError("no answer from the server in time"))

    def _fail(self, error: OSError) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
