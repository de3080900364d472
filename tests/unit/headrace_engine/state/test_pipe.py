"""The engine's end of the pipe: no sender waits, nothing is out of order, nothing grows for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator

import numpy as np
import pytest
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.packed import Kind, Unpacker, pack, unpack_outputs
from headrace_engine.state.pipe import Pipe, PipedOutputs

LIMIT_S = 30.0


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT_S)
    with ours, theirs:
        yield ours, theirs


def read(io: socket.socket, count: int) -> list[bytes]:
    """The texts of the next ``count`` messages."""
    unpacker = Unpacker()
    texts: list[bytes] = []
    while len(texts) < count:
        data = io.recv(1 << 16)
        assert data, texts
        texts += [message.text for message in unpacker.feed(data)]
    return texts


def test_what_is_sent_arrives_without_another_thread(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pipe = Pipe(ends[1])
    pipe.send(pack(Kind.LOADING, 1))

    assert read(ends[0], 1) == [b"1"]


@pytest.mark.rule("threads.mailboxes-only")
def test_a_slow_reader_gets_everything_in_order_and_no_sender_waits_for_it(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pipe = Pipe(ends[1])
    body = bytes(10_000)
    for i in range(500):  # more than any socket holds; nobody reads yet
        pipe.send(pack(Kind.LOADING, i, body))
    sender = threading.Thread(target=pipe.send_backlog)
    sender.start()
    for i in range(500, 600):
        pipe.send(pack(Kind.LOADING, i, body))

    assert read(ends[0], 600) == [b"%d" % i for i in range(600)]
    pipe.close(LIMIT_S)
    sender.join(LIMIT_S)
    assert not sender.is_alive()


def test_a_reader_that_never_reads_is_given_up(ends: tuple[socket.socket, socket.socket]) -> None:
    pipe = Pipe(ends[1], backlog_bytes=1 << 20)
    for _ in range(400):
        pipe.send(pack(Kind.LOADING, 0, bytes(10_000)))

    assert list(pipe.receive()) == []  # as if the reader had died
    pipe.send(pack(Kind.LOADING, 1))
    closing = threading.Thread(target=pipe.close, args=(LIMIT_S,))
    closing.start()
    closing.join(LIMIT_S / 2)
    assert not closing.is_alive(), "it waits for a reader that was given up"


def test_to_a_reader_that_is_gone_nothing_is_said(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pipe = Pipe(ends[1])
    ends[0].close()

    pipe.send(pack(Kind.LOADING, 1))
    assert list(pipe.receive()) == []
    pipe.close(LIMIT_S)  # at once: nothing waits


def test_messages_are_received_in_order_until_the_other_end_closes(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    pipe = Pipe(ends[1])
    ends[0].sendall(pack(Kind.CANCEL) + pack(Kind.CLOSE)[:5])
    ends[0].sendall(pack(Kind.CLOSE)[5:])
    ends[0].close()

    assert [message.kind for message in pipe.receive()] == [Kind.CANCEL, Kind.CLOSE]


def test_outputs_are_sent_by_whoever_tells_them(ends: tuple[socket.socket, socket.socket]) -> None:
    sink = PipedOutputs(Pipe(ends[1]))
    column = np.ones(1, np.int32)
    sink.put(PassOutputs(7, np.ones(1, np.int64), column, column, column, column))
    sink.close()

    [message] = Unpacker().feed(ends[0].recv(1 << 16))
    assert unpack_outputs(message).pass_id == 7
