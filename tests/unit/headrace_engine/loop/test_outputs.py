"""OutputBuilder: flat columns, one row per choice, one end per choice."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.state.batch import BatchOutput
from headrace_engine.state.outputs import SequenceUsage
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence

USAGE = SequenceUsage(1, 0, 0, 0.0, 0.0, 0.0, 0)


def make(number: int) -> Sequence:
    tokens = np.zeros(3, np.int32)
    request = Request(f"r{number}", RequestHandle(number), tokens[:1], Sampling(max_new_tokens=9))
    return Sequence(request, 0, number, tokens, 3, 1, 9, "", 0.0)


def set_tokens(builder: OutputBuilder, *handles: int) -> None:
    count = len(handles)
    builder.set_tokens(
        np.array(handles, np.int64),
        np.zeros(count, np.int32),
        np.full(count, 2, np.int32),
        np.arange(count, dtype=np.int32),
    )


@pytest.mark.rule("outputs.flat")
def test_token_rows_come_first_and_others_follow() -> None:
    builder = OutputBuilder()
    early, started, ended = make(1), make(2), make(3)
    builder.end(early, FinishReason.CANCELLED, USAGE, Code.CANCELLED, "")
    set_tokens(builder, 2, 3)
    builder.place(started, 0)
    builder.start(started, 1.5)
    builder.place(ended, 1)
    builder.end(ended, FinishReason.LENGTH, USAGE, None, "full")
    builder.end_unborn(9, 4, Code.INVALID_REQUEST, "bad")
    outputs = builder.take(7)
    assert outputs is not None
    assert outputs.pass_id == 7
    assert outputs.handles.tolist() == [2, 3, 1, 9]
    assert outputs.choices.tolist() == [0, 0, 0, 4]
    assert outputs.counts.tolist() == [1, 1, 0, 0]
    assert outputs.firsts.tolist() == [2, 2, 2, 0]
    assert outputs.tokens.tolist() == [0, 1]
    assert [(end.row, end.reason) for end in outputs.ends] == [
        (2, FinishReason.CANCELLED),
        (1, FinishReason.LENGTH),
        (3, FinishReason.ERROR),
    ]
    assert [(start.row, start.queue_s) for start in outputs.starts] == [(0, 1.5)]


def test_nothing_to_tell_is_nothing() -> None:
    builder = OutputBuilder()
    assert builder.take(1) is None
    set_tokens(builder, 1)
    assert builder.take(1) is not None
    assert builder.take(2) is None


@pytest.mark.rule("request.one-terminal-status")
def test_a_second_end_is_a_broken_invariant() -> None:
    builder = OutputBuilder()
    sequence = make(1)
    builder.end(sequence, FinishReason.STOP, USAGE, None, "")
    builder.take(1)
    with pytest.raises(AssertionError, match="second terminal"):
        builder.end(sequence, FinishReason.LENGTH, USAGE, None, "")


def test_one_that_starts_and_ends_in_a_pass_has_one_row() -> None:
    builder = OutputBuilder()
    sequence = make(1)
    builder.start(sequence, 0.0)
    builder.end(sequence, FinishReason.CANCELLED, USAGE, None, "")
    outputs = builder.take(1)
    assert outputs is not None
    assert outputs.handles.tolist() == [1]
    assert outputs.ends[0].row == outputs.starts[0].row == 0


def test_logprobs_are_cut_to_what_the_row_asked_for() -> None:
    builder = OutputBuilder()
    set_tokens(builder, 1, 2)
    output = BatchOutput(
        tokens=np.zeros(3, np.int32),
        failed=np.zeros(3, np.bool_),
        chosen_logprobs=np.array([-1.0, -2.0, -3.0], np.float32),
        top_ids=np.arange(9, dtype=np.int32).reshape(3, 3),
        top_logprobs=-np.arange(9, dtype=np.float32).reshape(3, 3),
    )
    builder.logprobs(0, 1, 2, output)
    builder.logprobs(1, 2, 0, output)
    outputs = builder.take(1)
    assert outputs is not None
    first, second = outputs.logprobs
    assert (first.row, first.chosen.tolist(), first.top_ids.tolist()) == (0, [-2.0], [[3, 4]])
    assert (second.chosen.tolist(), second.top_ids.shape) == ([-3.0], (1, 0))
