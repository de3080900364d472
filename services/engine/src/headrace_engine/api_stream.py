"""Streams of the offline API: tokens from the signal thread to readers of any thread or event loop.

Owner    shared; a monitor in each stream is the synchronisation
Writes   what is waiting for its reader
Never    waits for a reader; loses or repeats a token
Rules    offline.slow-reader, offline.left-is-gone, threads.mailboxes-only
Next     headrace_engine.api

A reader takes everything that came since it last looked: whoever reads slowly gets several
tokens at once, and is woken once for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headrace_contracts.codes import Code, FinishReason

from headrace_engine.api_errors import failure_of
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.mailbox import Monitor
from headrace_engine.state.outputs import PassOutputs, RowEnd, RowLogprobs, SequenceUsage
from headrace_engine.state.request import RequestHandle

ENGINE_THREADS: Final = frozenset({"engine", "signal", "executor", "collector"})
"""Names of threads that must not wait for a sequence: its end comes from them."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one token."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """The most likely tokens, as many as were asked for, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Output:
    """What became known of a sequence since its reader last looked.

    Invariants
        len(logprobs) in (0, len(tokens))
        usage is set where finish is
    """

    first: int
    """Index of the first of ``tokens`` among all that were generated."""
    tokens: list[int]
    """In order; possibly none in the last output."""
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    finish: FinishReason | None = None
    """Set in the last output of a sequence, and in no other."""
    usage: SequenceUsage | None = None


class CancelDoor(Protocol):
    """The engine's door as a stream sees it."""

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request in whatever state; a no-op for one that has ended."""
        ...


class Stream:
    """The tokens of one sequence, for one reader."""

    def __init__(
        self,
        handle: RequestHandle,
        door: CancelDoor,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``loop``: the reader's, if it awaits ``take_async`` instead of calling ``take``."""
        self.handle = handle
        self.loop = loop
        self.arrived = asyncio.Event()
        """Set on ``loop``; the reader clears it."""
        self._door = door
        self._monitor = Monitor()
        self._tokens: list[int] = []
        self._logprobs: list[RowLogprobs] = []
        self._end: RowEnd | None = None
        self._taken = 0
        self._told = False
        """Whether the reader has seen the end."""
        self._news = False
        self._only_end = False
        """The reader waits for nothing but the end."""

    # signal thread

    def put(self, tokens: Sequence[int], logprobs: RowLogprobs | None, end: RowEnd | None) -> bool:
        """Adds what one pass told. True: ``arrived`` is to be set."""
        with self._monitor as monitor:
            self._tokens += tokens
            if logprobs is not None:
                self._logprobs.append(logprobs)
            self._end = end or self._end
            known, self._news = self._news, True
            if end is not None or not (known or self._only_end):
                monitor.wake()
                return self.loop is not None
            return False

    # reader

    @property
    def ended(self) -> bool:
        """Whether the sequence has its terminal status; tokens may still wait to be taken."""
        return self._end is not None

    @property
    def told(self) -> bool:
        """Whether the reader has taken the end."""
        return self._told

    def take(self) -> Output:
        """Waits for news and takes all of it. After the end nothing may be taken.

        Raises what ended the sequence, once its tokens are taken, if that was an error.
        """
        with self._monitor as monitor:
            monitor.wait(lambda: self._news)
            return self._drain()

    async def take_async(self) -> Output:
        """As ``take``, on the event loop that was given."""
        while True:
            with self._monitor:
                if self._news:
                    return self._drain()
            await self.arrived.wait()
            self.arrived.clear()

    def wait(self) -> None:
        """Waits for the end, without taking anything."""
        with self._monitor as monitor:
            self._only_end = True
            monitor.wait(lambda: self._end is not None)

    async def wait_async(self) -> None:
        """As ``wait``, on the event loop that was given."""
        with self._monitor:
            self._only_end = True
        while not self.ended:
            await self.arrived.wait()
            self.arrived.clear()

    def cancel(self) -> None:
        """Asks for the end; the sequence finishes as CANCELLED unless it ended before."""
        if not self.ended:
            self._door.cancel(Cancel(self.handle, FinishReason.CANCELLED))

    def close(self) -> None:
        """Cancels, and waits for the terminal status: afterwards the engine holds nothing of it."""
        if self.ended:
            return
        self.cancel()
        # A generator may be collected on any thread. These cannot wait for themselves.
        if threading.current_thread().name not in ENGINE_THREADS:
            self.wait()

    async def close_async(self) -> None:
        """As ``close``, on the event loop that was given."""
        self.cancel()
        await self.wait_async()

    def __iter__(self) -> Iterator[Output]:
        """Outputs up to and with the last one."""
        while not self._told:
            yield self.take()

    def _drain(self) -> Output:
        assert not self._told, "the end was taken"
        end = self._end
        failure = failure_of(end) if end is not None else None
        tokens, self._tokens = self._tokens, []
        logprobs, self._logprobs = self._logprobs, []
        first, self._taken = self._taken, self._taken + len(tokens)
        self._news = failure is not None and bool(tokens)
        found = [found for row in logprobs for found in _token_logprobs(row)]
        if end is None or self._news:
            return Output(first, tokens, found)
        self._told = True
        if failure is not None:
            raise failure
        return Output(first, tokens, found, end.reason, end.usage)


class Streams:
    """The streams of one engine core by handle, from their opening to their end."""

    def __init__(self, door: CancelDoor) -> None:
        self._door = door
        self._monitor = Monitor()
        self._by_handle: dict[int, Stream] = {}
        self._newest = 0

    def open(self, loop: asyncio.AbstractEventLoop | None = None) -> Stream:
        """A stream under a handle of its own."""
        with self._monitor:
            self._newest += 1
            stream = Stream(RequestHandle(self._newest), self._door, loop)
            self._by_handle[self._newest] = stream
            return stream

    def forget(self, stream: Stream) -> None:
        """Nothing will come: its request was not taken."""
        with self._monitor:
            del self._by_handle[stream.handle]

    def __len__(self) -> int:
        return len(self._by_handle)

    def deliver(self, batch: Sequence[PassOutputs]) -> None:
        """Gives every row to its stream. Runs on the signal thread."""
        bells: dict[asyncio.AbstractEventLoop, list[asyncio.Event]] = {}
        for outputs in batch:
            self._deliver(outputs, bells)
        for loop, events in bells.items():
            # One call for all of a loop's readers: each wakes the loop through a socket.
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its readers with it
                loop.call_soon_threadsafe(_ring, events)

    def fail_all(self, code: Code, message: str) -> None:
        """Ends what is left, as an error. Runs when nothing can follow."""
        with self._monitor:
            left = list(self._by_handle.values())
            self._by_handle.clear()
        usage = SequenceUsage(0, 0, 0, 0.0, 0.0, 0.0, 0)
        for stream in left:
            end = RowEnd(0, FinishReason.ERROR, usage, code, message)
            if stream.put((), None, end) and stream.loop is not None:
                with contextlib.suppress(RuntimeError):  # as in deliver
                    stream.loop.call_soon_threadsafe(stream.arrived.set)

    def _deliver(
        self, outputs: PassOutputs, bells: dict[asyncio.AbstractEventLoop, list[asyncio.Event]]
    ) -> None:
        ends = {end.row: end for end in outputs.ends}
        logprobs = {found.row: found for found in outputs.logprobs}
        tokens: list[int] = outputs.tokens.tolist()
        counts: list[int] = outputs.counts.tolist()
        with self._monitor:
            streams = [self._by_handle[handle] for handle in outputs.handles.tolist()]
            for row in ends:
                del self._by_handle[streams[row].handle]
        at = 0
        for row, (stream, count) in enumerate(zip(streams, counts, strict=True)):
            end = ends.get(row)
            if not count and end is None:
                continue  # it has started, which a reader sees by its first token
            if stream.put(tokens[at : at + count], logprobs.get(row), end):
                assert stream.loop is not None
                bells.setdefault(stream.loop, []).append(stream.arrived)
            at += count


def _ring(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()


def _token_logprobs(row: RowLogprobs) -> list[TokenLogprobs]:
    chosen: list[float] = row.chosen.tolist()
    ids: list[list[int]] = row.top_ids.tolist()
    values: list[list[float]] = row.top_values.tolist()
    return [
        TokenLogprobs(chosen[i], tuple(zip(ids[i], values[i], strict=True)))
        for i in range(len(chosen))
    ]
