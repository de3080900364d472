"""One connection: replies in order however their bytes come, and an end that everybody hears of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from headrace_transport.channel import Channel, ErrorReply
from redis.asyncio.connection import Connection

LIMIT_S = 20.0


class Peer:
    """The server's end: the test writes what it answers."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.writer: asyncio.StreamWriter | None = None
        self._news = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the handshake, then only listens."""
        self.writer = writer
        for last_word in (b"headrace\r\n", b"LIB-NAME\r\n", b"LIB-VER\r\n"):
            await reader.readuntil(last_word)
            if last_word != b"headrace\r\n":
                await reader.readuntil(b"\r\n")
                await reader.readuntil(b"\r\n")
            writer.write(b"+OK\r\n")
        while data := await reader.read(1 << 16):
            self.heard += data
            self._news.set()
        writer.close()

    async def say(self, *pieces: bytes) -> None:
        """Each piece is a segment of its own."""
        assert self.writer is not None
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.005)

    async def hears(self, words: bytes) -> None:
        """Waits until they have come."""
        async with asyncio.timeout(LIMIT_S):
            while words not in self.heard:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def connected() -> AsyncGenerator[tuple[Channel, Peer]]:
    """An open channel and its peer."""
    peer = Peer()
    listener = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    port: int = listener.sockets[0].getsockname()[1]
    made = Connection(host="127.0.0.1", port=port, protocol=2, client_name="headrace")
    channel = await Channel.open(made)  # pyright: ignore[reportArgumentType]
    try:
        yield channel, peer
    finally:
        await channel.close()
        if peer.writer is not None:
            peer.writer.close()
        listener.close()
        await listener.wait_closed()


async def test_commands_are_spelled_as_the_protocol_has_them() -> None:
    async with connected() as (channel, peer):
        asked = asyncio.ensure_future(
            channel.exchange([("SET", "k\u00e9", b"\x00\r\n"), ("INCRBY", "n", 7, 1.5)], LIMIT_S)
        )
        await peer.hears(b"1.5\r\n")
        await peer.say(b"+OK\r\n:8\r\n")
        assert await asked == [b"OK", 8]
        assert bytes(peer.heard) == (
            b"*3\r\n$3\r\nSET\r\n$3\r\nk\xc3\xa9\r\n$3\r\n\x00\r\n\r\n"
            b"*4\r\n$6\r\nINCRBY\r\n$1\r\nn\r\n$1\r\n7\r\n$3\r\n1.5\r\n"
        )


async def test_replies_may_come_in_any_pieces() -> None:
    async with connected() as (channel, peer):
        asked = asyncio.ensure_future(channel.exchange([("A",), ("B",), ("C",)], LIMIT_S))
        await peer.hears(b"C\r\n")
        await peer.say(
            b"*2\r\n$3\r\na\r", b"b\r\n*1\r\n:", b"1\r\n-ERR no", b"t so\r\n", b"*-1\r\n"
        )
        first, second, third = await asked
        assert (first, third) == ([b"a\rb", [1]], None)
        assert isinstance(second, ErrorReply)
        assert (second.code, second.text) == ("ERR", "not so")


async def test_a_lost_connection_ends_the_exchange_and_the_channel() -> None:
    async with connected() as (channel, peer):
        asked = asyncio.ensure_future(channel.exchange([("A",)], LIMIT_S))
        await peer.hears(b"A\r\n")
        assert channel.is_open
        assert peer.writer is not None
        peer.writer.close()
        with pytest.raises(OSError, match="closed"):
            await asked
        assert not channel.is_open
        with pytest.raises(OSError, match="closed"):
            await channel.exchange([("B",)], LIMIT_S)


@pytest.mark.parametrize("bytes_", [b"+OK\r\n+MORE\r\n", b"?what\r\n"])
async def test_bytes_that_are_no_reply_to_anything_end_it(bytes_: bytes) -> None:
    async with connected() as (channel, peer):
        asked = asyncio.ensure_future(channel.exchange([("A",)], LIMIT_S))
        await peer.hears(b"A\r\n")
        await peer.say(bytes_)
        with pytest.raises(OSError, match="out of step"):
            await asked
        assert not channel.is_open


async def test_an_answer_that_is_late_is_an_error_and_leaves_dropping_to_the_caller() -> None:
    async with connected() as (channel, _):
        with pytest.raises(TimeoutError, match="in time"):
            await channel.exchange([("A",)], 0.01)
        channel.drop()
        assert not channel.is_open


async def test_who_cannot_connect_leaves_no_socket() -> None:
    listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port: int = listener.sockets[0].getsockname()[1]
    made = Connection(host="127.0.0.1", port=port, protocol=2, client_name="headrace")
    with pytest.raises(Exception, match=r"[Cc]lose"):
        await Channel.open(made)  # pyright: ignore[reportArgumentType]
    assert not made.is_connected
    listener.close()
    await listener.wait_closed()
