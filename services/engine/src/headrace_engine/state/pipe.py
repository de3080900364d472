"""Pipe: the engine's end of the socket to the io process. Whole messages, from any thread.

Owner    shared by the threads of the engine's process; the monitor inside is their synchronisation
Writes   its own backlog
Never    lets a sender wait for the reader; keeps more than ``BACKLOG_BYTES``
Rules    threads.mailboxes-only, outputs.flat
Next     headrace_engine.host.child
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

from headrace_engine.state.mailbox import Monitor
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.packed import Message, Unpacker, pack_outputs

BACKLOG_BYTES: Final = 64 << 20
"""What may wait for a reader that does not read, before the connection is given up."""
_READ_BYTES: Final = 1 << 18


class Pipe:
    """Sends at once what the kernel takes. The rest waits for the thread of ``send_backlog``.

    So a pass of the engine costs one call into the kernel, and no other thread has to wake up to
    bring its outputs out, unless the reader is slow.
    """

    def __init__(self, connection: socket.socket, backlog_bytes: int = BACKLOG_BYTES) -> None:
        """``connection`` is a blocking stream socket, ours from now on."""
        self._socket = connection
        self._limit = backlog_bytes
        self._monitor = Monitor()
        self._backlog: deque[bytes] = deque()
        self._waiting_bytes = 0
        """Of the backlog, with what its thread is sending."""
        self._closed = False

    def send(self, data: bytes) -> None:
        """Any thread; never waits. What is sent to a reader that is gone is lost."""
        with self._monitor as monitor:
            if self._closed:
                return
            sent = 0 if self._waiting_bytes else self._try(data)
            if sent == len(data):
                return
            self._backlog.append(data[sent:])
            self._waiting_bytes += len(data) - sent
            if self._waiting_bytes > self._limit:
                self._give_up()  # whoever receives finds the end, as if the reader had died
            monitor.wake()

    def send_backlog(self) -> None:
        """A thread's body: sends what did not go at once, until closed."""
        while True:
            with self._monitor as monitor:
                monitor.wait(lambda: bool(self._backlog) or self._closed)
                if not self._backlog:
                    return
                data = self._backlog.popleft()
            with contextlib.suppress(OSError):  # the reader is gone: ``receive`` ends
                self._socket.sendall(data)
            with self._monitor as monitor:
                self._waiting_bytes -= len(data)
                monitor.wake()

    def receive(self) -> Iterator[Message]:
        """One thread: every message, in order, until the other end is closed."""
        unpacker = Unpacker()
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError:
                return
            if not data:
                return
            yield from unpacker.feed(data)

    def close(self, timeout_s: float) -> None:
        """Waits until everything is sent, at most ``timeout_s``; nothing is sent afterwards.

        For a reader that was given up there is nothing to wait for.
        """
        with self._monitor as monitor:
            monitor.wait(lambda: self._closed or not self._waiting_bytes, timeout_s)
            self._closed = True
            monitor.wake()

    def _try(self, data: bytes) -> int:
        """Bytes that the kernel took."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:  # gone: there is nothing to wait for
            return len(data)

    def _give_up(self) -> None:
        self._closed = True
        self._backlog.clear()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class PipedOutputs:
    """What the engine tells, sent by the thread that tells it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def put(self, item: PassOutputs) -> None:
        """Sends one pass."""
        self._pipe.send(pack_outputs(item))

    def close(self) -> None:
        """Nothing follows; the pipe itself still says why."""
