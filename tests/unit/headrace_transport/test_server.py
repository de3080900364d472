"""The seam to the server: every answer of a server becomes a reply or one of our errors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable

import pytest
from headrace_transport.errors import (
    AccessDenied,
    CommandFailed,
    ServerUnsuitable,
    TransportError,
    TransportUnavailable,
    WrongType,
)
from headrace_transport.options import WireOptions
from headrace_transport.server import Server

Answer = Callable[[list[bytes]], bytes | None]


async def _read_command(reader: asyncio.StreamReader) -> list[bytes] | None:
    head = await reader.readline()
    if not head:
        return None
    words: list[bytes] = []
    for _ in range(int(head[1:])):
        size = int((await reader.readline())[1:])
        words.append((await reader.readexactly(size + 2))[:-2])
    return words


@contextlib.asynccontextmanager
async def scripted(
    answer: Answer, *, op_timeout_s: float = 20.0
) -> AsyncGenerator[tuple[Server, list[list[bytes]]]]:
    """A server that answers what the test says; None: it hangs up. Commands are written down."""
    seen: list[list[bytes]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError):  # a client that gave up
            while (words := await _read_command(reader)) is not None:
                if words[0] in (b"CLIENT", b"SELECT"):
                    writer.write(b"+OK\r\n")
                    continue
                seen.append(words)
                reply = answer(words)
                if reply is None:
                    break
                writer.write(reply)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port: int = listener.sockets[0].getsockname()[1]
    options = WireOptions(op_timeout_s=op_timeout_s, max_connections=1)
    server = Server(f"redis://127.0.0.1:{port}/0", password=None, options=options)
    try:
        yield server, seen
    finally:
        await server.close()
        listener.close()
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):  # the other end may have left first
                await writer.wait_closed()
        await listener.wait_closed()


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"-READONLY You can't write against a read only replica.", TransportUnavailable),
        (
            b"-READONLY Can not run script with write flag on readonly replica.",
            TransportUnavailable,
        ),
        (b"-LOADING Redis is loading the dataset in memory", TransportUnavailable),
        (b"-OOM command not allowed when used memory > 'maxmemory'.", TransportUnavailable),
        (b"-MISCONF Redis is configured to save RDB snapshots", TransportUnavailable),
        (b"-MASTERDOWN Link with MASTER is down", TransportUnavailable),
        (b"-CLUSTERDOWN The cluster is down", TransportUnavailable),
        (b"-BUSY Redis is busy running a script.", TransportUnavailable),
        (b"-NOREPLICAS Not enough good replicas to write.", TransportUnavailable),
        (b"-UNBLOCKED force unblock from blocking operation", TransportUnavailable),
        (b"-ERR max number of clients reached", TransportUnavailable),
        (b"-NOAUTH Authentication required.", AccessDenied),
        (b"-NOPERM User x has no permissions", AccessDenied),
        (b"-WRONGTYPE Operation against a key holding the wrong kind of value", WrongType),
        (b"-ERR unknown command 'X'", CommandFailed),
    ],
)
async def test_error_reply_says_whose_move_is_next(
    line: bytes, error: type[TransportError]
) -> None:
    async with scripted(lambda _: line + b"\r\n") as (server, _):
        with pytest.raises(TransportError) as raised:
            await server.command("X")
    assert type(raised.value) is error


async def test_error_reply_leaves_the_connection_in_step() -> None:
    answers = iter([b"-ERR no\r\n:1\r\n", b":2\r\n", b":3\r\n"])
    async with scripted(lambda words: next(answers) if words[0] != b"SECOND" else b"") as (
        server,
        _,
    ):
        with pytest.raises(CommandFailed):
            await server.pipeline([("FIRST",), ("SECOND",)])
        assert await server.command("X") == 2
        assert await server.command("X") == 3


async def test_unknown_script_is_sent_whole_once() -> None:
    def answer(words: list[bytes]) -> bytes:
        return b"-NOSCRIPT No matching script.\r\n" if words[0] == b"EVALSHA" else b":7\r\n"

    async with scripted(answer) as (server, seen):
        assert await server.run("depth", ["k"], []) == 7
    assert [words[0] for words in seen] == [b"EVALSHA", b"EVAL"]
    assert seen[1][2:] == [b"1", b"k"]


async def test_of_many_runs_only_the_refused_are_sent_again() -> None:
    def answer(words: list[bytes]) -> bytes:
        if words[0] == b"EVALSHA" and words[3] == b"b":
            return b"-NOSCRIPT No matching script.\r\n"
        return b"$1\r\n%s\r\n" % words[3]

    async with scripted(answer) as (server, seen):
        calls = [([name], ["x"]) for name in ("a", "b", "c")]
        assert await server.run_many("depth", calls) == [b"a", b"b", b"c"]
        assert await server.run_many("depth", []) == []
    assert [words[0] for words in seen].count(b"EVAL") == 1


async def test_write_whose_answer_is_lost_is_not_sent_again() -> None:
    async with scripted(lambda _: None) as (server, seen):
        with pytest.raises(TransportUnavailable):
            await server.run("submit", [], [])
    assert len(seen) == 1


async def test_silence_is_unavailable_in_time_and_the_late_answer_is_nobodys() -> None:
    silent = True

    def answer(_: list[bytes]) -> bytes:
        return b"" if silent else b":5\r\n"

    async with scripted(answer, op_timeout_s=0.2) as (server, _):
        with pytest.raises(TransportUnavailable, match="in time"):
            await server.command("X")
        silent = False
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await server.command("X") == 5
                except TransportUnavailable:
                    continue  # the machine was slow this time
                break


async def test_blocking_read_has_a_connection_of_its_own() -> None:
    async with scripted(lambda words: b"" if words[0] == b"BLOCK" else b":1\r\n") as (server, _):
        reading = asyncio.ensure_future(server.blocking("r", "BLOCK", block_ms=20_000))
        await asyncio.sleep(0.02)
        # one connection is all there is for commands, and it is free
        assert await server.command("X") == 1
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("url", ["ftp://x", "redis://h:port/0"])
def test_url_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(ServerUnsuitable, match="redis_url"):
        Server(url, password=None, options=WireOptions())


async def test_server_is_calm_until_it_was_unavailable() -> None:
    answers = iter([b":1\r\n", b"-ERR no such thing\r\n", b"-LOADING soon\r\n"])
    async with scripted(lambda words: b"" if words[0] == b"SILENCE" else next(answers)) as (
        server,
        _,
    ):
        await server.command("X")
        with pytest.raises(CommandFailed):
            await server.command("X")
        waiting = asyncio.ensure_future(server.blocking("r", "SILENCE", block_ms=20_000))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        # neither a refused command nor a caller that gave up is an outage
        assert server.calm_s == float("inf")
        with pytest.raises(TransportUnavailable):
            await server.command("X")
        assert server.calm_s < 60
