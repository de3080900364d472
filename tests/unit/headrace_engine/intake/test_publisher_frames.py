"""Frames and log entries, as columns."""

from __future__ import annotations

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.intake.book import RowBook
from headrace_engine.intake.columns import Rows, row_key
from headrace_engine.intake.held import Held
from headrace_engine.intake.publisher_frames import (
    frames_of,
    last_logprobs,
    log_entry,
    row_finish,
    usage_message,
)
from headrace_engine.state.outputs import RowEnd, RowLogprobs, RowStarted, SequenceUsage
from support.held import make_held

USAGE = SequenceUsage(
    prompt_tokens=3,
    completion_tokens=2,
    cached_tokens=1,
    queue_s=0.5,
    prefill_s=0.25,
    decode_s=1.0,
    preemptions=1,
)


def keys_of(held: Held) -> list[int]:
    """Keys of every choice."""
    return [row_key(held.handle, choice) for choice in range(held.choices)]


def book_of(*requests: Held) -> RowBook:
    """A book with these requests."""
    book = RowBook()
    for held in requests:
        book.add(held, keys_of(held), [0] * held.choices)
    return book


def logprobs(*values: float) -> RowLogprobs:
    """Logprobs of as many tokens, one candidate each."""
    count = len(values)
    return RowLogprobs(
        0,
        np.array(values, np.float32),
        np.arange(count, dtype=np.int32).reshape(count, 1),
        np.zeros((count, 1), np.float32),
    )


def test_each_gateway_gets_its_rows_in_one_frame() -> None:
    one, two = make_held("a", handle=1, slot=5), make_held("b", handle=2, gateway="other", slot=7)
    three = make_held("c", handle=3, n=2, slot=20, attempt=4)
    book = book_of(one, two, three)
    keys = np.array([*keys_of(one), *keys_of(two), *keys_of(three)], np.int64)
    rows = Rows(
        pass_id=9,
        keys=keys,
        firsts=np.array([0, 3, 1, 1], np.int32),
        counts=np.array([2, 1, 1, 0], np.int32),
        tokens=np.array([100, 101, 200, 300], np.int32),
        ends=[(3, RowEnd(3, FinishReason.ERROR, USAGE, Code.INTERNAL, "why"))],
        starts=[(1, RowStarted(1, 3, 2, 0.001))],
        logprobs=[(2, logprobs(-1.0))],
    )

    frames = frames_of(rows, book.find(keys), book, "engine-1")

    assert set(frames) == {"gw", "other"}
    mine, other = frames["gw"], frames["other"]
    assert (mine.engine, mine.pass_id, mine.version) == ("engine-1", 9, 1)
    assert list(mine.slots) == [5, 20, 21]
    assert list(mine.attempts) == [1, 4, 4]
    assert list(mine.firsts) == [0, 1, 1]
    assert list(mine.counts) == [2, 1, 0]
    assert list(mine.tokens) == [100, 101, 300]
    assert [(f.row, f.reason, f.code, f.message) for f in mine.finishes] == [
        (2, FinishReason.ERROR, Code.INTERNAL, "why")
    ]
    assert [(item.row, list(item.chosen)) for item in mine.logprobs] == [(1, [-1.0])]
    assert list(other.slots) == [7]
    assert list(other.tokens) == [200]
    assert [(s.row, s.prompt_tokens, s.cached_tokens) for s in other.starts] == [(0, 3, 2)]
    assert other.starts[0].engine_queue_us == 1000


def test_logprobs_of_several_passes_follow_each_other_in_one_row() -> None:
    held = make_held()
    book = book_of(held)
    rows = Rows(
        pass_id=1,
        keys=np.array(keys_of(held), np.int64),
        firsts=np.zeros(1, np.int32),
        counts=np.array([3], np.int32),
        tokens=np.array([1, 2, 3], np.int32),
        logprobs=[(0, logprobs(-1.0)), (0, logprobs(-2.0, -3.0))],
    )

    (frame,) = frames_of(rows, book.find(rows.keys), book, "e").values()

    assert len(frame.logprobs) == 1
    assert list(frame.logprobs[0].chosen) == [-1.0, -2.0, -3.0]
    assert list(frame.logprobs[0].top_ids) == [0, 0, 1]
    assert frame.logprobs[0].width == 1


def test_an_entry_holds_what_the_log_lacks_and_nothing_else() -> None:
    held = make_held(n=3)
    book = book_of(held)
    rows = book.find(np.array(keys_of(held), np.int64))
    counts = np.array([2, 0, 1], np.int32)
    book.published(rows, np.zeros(3, np.int32), counts, np.array([11, 12, 31], np.int32))
    book.appended(int(rows[0]), 1)
    held.ends[1] = row_finish(RowEnd(0, FinishReason.STOP, USAGE), 1)
    held.unlogged_ends.add(1)
    held.unlogged_logprobs[2] = [logprobs(-4.0)]

    entry = log_entry(held, rows.tolist(), book, "7-1")

    assert list(entry.choices) == [0, 1, 2]
    assert list(entry.firsts) == [1, 0, 0]
    assert list(entry.counts) == [1, 0, 1]
    assert list(entry.tokens) == [12, 31]
    assert [(f.row, f.reason) for f in entry.finishes] == [(1, FinishReason.STOP)]
    assert [(item.row, list(item.chosen)) for item in entry.logprobs] == [(2, [-4.0])]
    assert (entry.frame_id, entry.prompt_tokens) == ("7-1", 3)


def test_only_the_first_entry_names_the_prompt() -> None:
    held = make_held()
    held.logged_prompt = True

    assert (
        log_entry(
            held, book_of(held).find(np.array(keys_of(held))).tolist(), book_of(held), ""
        ).prompt_tokens
        == 0
    )


def test_the_last_logprobs_are_cut_inside_an_item() -> None:
    items = [logprobs(-1.0, -2.0), logprobs(-3.0)]

    assert [item.chosen.tolist() for item in last_logprobs(items, 2)] == [[-2.0], [-3.0]]
    assert last_logprobs(items, 0) == []
    assert [len(item.chosen) for item in last_logprobs(items, 3)] == [2, 1]


def test_choices_share_the_prompt_and_add_their_output() -> None:
    total = usage_message([USAGE, USAGE])

    assert (total.prompt_tokens, total.completion_tokens, total.cached_tokens) == (3, 4, 1)
    assert (total.decode_us, total.preemptions) == (2_000_000, 2)
