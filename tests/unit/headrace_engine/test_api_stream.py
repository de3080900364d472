"""Streams: nothing is lost however slowly it is read, and each has one end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.api_errors import RequestFailed
from headrace_engine.api_stream import Stream, Streams
from headrace_engine.errors import EngineFailed
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs, RowEnd, RowLogprobs, SequenceUsage
from numpy.typing import NDArray

USAGE = SequenceUsage(3, 2, 0, 0.0, 0.0, 0.0, 0)


class Door:
    """Remembers what was cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[Cancel] = []

    def cancel(self, cancel: Cancel) -> None:
        self.cancelled.append(cancel)


def outputs(
    rows: list[tuple[Stream, int | None]],
    ends: Mapping[int, tuple[FinishReason, Code | None]] | None = None,
    logprobs: list[RowLogprobs] | None = None,
) -> PassOutputs:
    """One pass. A row without a token only starts or ends."""
    handles: NDArray[np.int64] = np.array([stream.handle for stream, _ in rows], np.int64)
    return PassOutputs(
        pass_id=1,
        handles=handles,
        choices=np.zeros(len(rows), np.int32),
        firsts=np.zeros(len(rows), np.int32),
        counts=np.array([token is not None for _, token in rows], np.int32),
        tokens=np.array([token for _, token in rows if token is not None], np.int32),
        ends=[
            RowEnd(row, reason, USAGE, code, "why") for row, (reason, code) in (ends or {}).items()
        ],
        logprobs=logprobs or [],
    )


STOP = (FinishReason.STOP, None)


def test_a_slow_reader_gets_everything_at_once() -> None:
    streams = Streams(Door())
    one, other = streams.open(), streams.open()

    streams.deliver([outputs([(one, 5), (other, 9)]), outputs([(one, 6)])])
    streams.deliver([outputs([(one, 7)], {0: STOP})])

    taken = one.take()
    assert (taken.first, taken.tokens, taken.finish) == (0, [5, 6, 7], FinishReason.STOP)
    assert taken.usage == USAGE
    assert other.take().tokens == [9]
    assert len(streams) == 1


def test_a_quick_reader_gets_each_token_with_its_place() -> None:
    streams = Streams(Door())
    stream = streams.open()
    found: list[tuple[int, list[int], bool]] = []

    for token in (5, 6):
        streams.deliver([outputs([(stream, token)])])
        taken = stream.take()
        found.append((taken.first, taken.tokens, taken.finish is not None))
    streams.deliver([outputs([(stream, None)], {0: STOP})])
    last = stream.take()

    assert found == [(0, [5], False), (1, [6], False)]
    assert (last.first, last.tokens, last.finish) == (2, [], FinishReason.STOP)
    assert stream.told


def test_a_start_alone_is_no_news() -> None:
    streams = Streams(Door())
    stream, other = streams.open(), streams.open()

    streams.deliver([outputs([(other, 3), (stream, None)]), outputs([(stream, 4)])])

    assert stream.take().tokens == [4]


def test_iterating_ends_with_the_end() -> None:
    streams = Streams(Door())
    stream = streams.open()
    streams.deliver([outputs([(stream, 5)]), outputs([(stream, 6)], {0: STOP})])

    assert [taken.tokens for taken in stream] == [[5, 6]]
    assert list(stream) == []


def test_tokens_before_an_error_are_told_before_it() -> None:
    streams = Streams(Door())
    stream = streams.open()
    end = (FinishReason.ERROR, Code.NUMERIC_FAILURE)
    streams.deliver([outputs([(stream, 5)], {0: end})])

    assert (stream.take().tokens, stream.told) == ([5], False)
    with pytest.raises(RequestFailed, match="why"):
        stream.take()
    assert stream.told


def test_logprobs_come_with_their_tokens() -> None:
    streams = Streams(Door())
    stream = streams.open()
    chosen = np.array([-0.5], np.float32)
    ids, values = np.array([[7, 8]], np.int32), np.array([[-0.5, -1.5]], np.float32)
    streams.deliver([outputs([(stream, 7)], logprobs=[RowLogprobs(0, chosen, ids, values)])])

    (found,) = stream.take().logprobs
    assert (found.chosen, found.top) == (-0.5, ((7, -0.5), (8, -1.5)))


def test_closing_cancels_and_waits_for_the_end() -> None:
    door = Door()
    streams = Streams(door)
    stream = streams.open()
    closing = threading.Thread(target=stream.close)
    closing.start()

    while not door.cancelled:
        closing.join(0.001)
    streams.deliver([outputs([(stream, 5)])])
    assert closing.is_alive()
    streams.deliver([outputs([(stream, None)], {0: (FinishReason.CANCELLED, Code.CANCELLED)})])
    closing.join(10)

    assert not closing.is_alive()
    assert [cancel.handle for cancel in door.cancelled] == [stream.handle]


def test_closing_on_a_thread_of_the_engine_does_not_wait() -> None:
    door = Door()
    stream = Streams(door).open()
    collected = threading.Thread(target=stream.close, name="signal")
    collected.start()
    collected.join(10)

    assert not collected.is_alive()
    assert len(door.cancelled) == 1


def test_what_has_ended_is_not_cancelled() -> None:
    door = Door()
    streams = Streams(door)
    stream = streams.open()
    streams.deliver([outputs([(stream, 5)], {0: STOP})])

    stream.cancel()
    stream.close()

    assert door.cancelled == []


def test_when_nothing_can_follow_every_reader_is_told() -> None:
    streams = Streams(Door())
    stream = streams.open()

    streams.fail_all(Code.ENGINE_FAILED, "it broke")

    with pytest.raises(EngineFailed, match="it broke"):
        stream.take()
    assert len(streams) == 0


async def test_an_event_loop_is_woken_for_news_and_for_the_end() -> None:
    loop = asyncio.get_running_loop()
    streams = Streams(Door())
    several = [streams.open(loop) for _ in range(3)]
    taking = [asyncio.ensure_future(stream.take_async()) for stream in several]
    await asyncio.sleep(0)

    rows: list[tuple[Stream, int | None]] = [(stream, 4) for stream in several]
    await asyncio.to_thread(streams.deliver, [outputs(rows)])
    assert [taken.tokens for taken in await asyncio.gather(*taking)] == [[4]] * 3

    closing = asyncio.ensure_future(several[0].close_async())
    await asyncio.sleep(0)
    end = {0: (FinishReason.CANCELLED, Code.CANCELLED)}
    await asyncio.to_thread(streams.deliver, [outputs([(several[0], None)], end)])
    await closing
    assert several[0].ended

    await asyncio.to_thread(streams.fail_all, Code.ENGINE_FAILED, "it broke")
    with pytest.raises(EngineFailed):
        await several[1].take_async()


def test_a_loop_that_has_closed_stops_nobody_else() -> None:
    streams = Streams(Door())
    loop = asyncio.new_event_loop()
    gone, here = streams.open(loop), streams.open()
    loop.close()

    streams.deliver([outputs([(gone, 1), (here, 2)])])
    streams.fail_all(Code.ENGINE_FAILED, "it broke")

    assert here.take().tokens == [2]
