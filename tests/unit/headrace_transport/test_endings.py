"""Ends that no engine decides."""

from __future__ import annotations

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark, RowFinish, Usage
from headrace_transport.endings import (
    EXPIRED,
    Ending,
    ending_of,
    finish_row,
    terminal_entry,
    terminal_frame,
    total_usage,
    worst,
)
from support.wires import mark


def test_mark_decides_reason_and_code() -> None:
    assert ending_of(mark()) == Ending(FinishReason.CANCELLED, Code.CANCELLED)
    assert ending_of(mark(FinishReason.STOP)) == Ending(FinishReason.STOP)
    assert ending_of(mark(FinishReason.DEADLINE)) == EXPIRED
    # a mark without a reason is a cancel, not an error
    assert ending_of(CancelMark()).reason is FinishReason.CANCELLED
    of_a_newer_version = CancelMark.FromString(b"\x08\x4d")
    assert ending_of(of_a_newer_version) == Ending(FinishReason.CANCELLED, Code.CANCELLED)


def test_terminal_frame_ends_every_choice_where_it_stands() -> None:
    frame = terminal_frame(slot=7, attempt=3, lengths=[4, 0], ending=EXPIRED, prompt_tokens=9)
    assert list(frame.slots) == [7, 8]
    assert list(frame.attempts) == [3, 3]
    assert (list(frame.firsts), list(frame.counts)) == ([4, 0], [0, 0])
    assert [f.reason for f in frame.finishes] == [FinishReason.DEADLINE] * 2
    assert [f.code for f in frame.finishes] == [Code.DEADLINE_EXCEEDED] * 2
    assert [f.usage.completion_tokens for f in frame.finishes] == [4, 0]


def test_terminal_entry_says_the_same_to_the_log() -> None:
    frame = terminal_frame(slot=7, attempt=3, lengths=[4, 0], ending=EXPIRED, prompt_tokens=9)
    entry = terminal_entry(frame, slot=7, attempt=3)
    assert list(entry.choices) == [0, 1]
    assert (list(entry.firsts), list(entry.counts)) == ([4, 0], [0, 0])
    assert list(entry.finishes) == list(frame.finishes)


def test_row_without_a_code_has_none() -> None:
    row = finish_row(2, Ending(FinishReason.STOP), Usage())
    assert (row.row, row.reason, row.code) == (2, FinishReason.STOP, 0)


def test_usage_counts_the_prompt_once() -> None:
    rows = [
        RowFinish(usage=Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8, decode_us=5)),
        RowFinish(usage=Usage(prompt_tokens=9, completion_tokens=2, preemptions=1, decode_us=6)),
    ]
    assert total_usage(rows, prompt_tokens=9) == Usage(
        prompt_tokens=9, completion_tokens=6, cached_tokens=8, preemptions=1, decode_us=11
    )


def test_the_worst_of_several_reasons_is_an_error_before_a_cancel_before_an_end() -> None:
    rising = [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.DEADLINE,
        FinishReason.CANCELLED,
        FinishReason.ERROR,
    ]
    assert sorted(FinishReason) == sorted(rising)
    for i, reason in enumerate(rising):
        assert worst([reason, *rising[:i]]) is reason
