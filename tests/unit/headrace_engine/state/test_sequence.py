"""Sequence and its columns: tokens grow, and move from the column to the sequence once."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence, SequenceColumns


def make(prompt: list[int]) -> Sequence:
    tokens = np.array(prompt, np.int32)
    request = Request("r", RequestHandle(7), tokens, Sampling(max_new_tokens=9, logprobs=3))
    return Sequence(request, 2, 1, tokens, len(prompt), len(prompt), 20, "", 0.0)


def test_tokens_grow_without_changing_what_was_given_away() -> None:
    sequence = make([1, 2, 3])
    given = sequence.tokens[: sequence.length]
    for i in range(40):
        sequence.append(np.array([i], np.int32))
    assert given.tolist() == [1, 2, 3]
    assert sequence.tokens[: sequence.length].tolist() == [1, 2, 3, *range(40)]


@pytest.mark.rule("loop.columns")
def test_a_flush_moves_what_is_known_once() -> None:
    columns = SequenceColumns(4, 4)
    sequence = make([1, 2, 3])
    columns.enter(3, sequence)
    assert columns.handle[3] == 7
    assert columns.choice[3] == 2
    assert columns.logprobs[3] == 3
    slots = np.array([3], np.int32)
    for token in range(10, 16):
        columns.recent[slots, columns.known[slots] - columns.base[slots]] = token
        columns.known[slots] += 1
    columns.flush(3, sequence)
    columns.flush(3, sequence)
    assert sequence.tokens[: sequence.length].tolist() == [1, 2, 3, 10, 11, 12, 13, 14, 15]
    assert columns.base[3] == sequence.length == columns.known[3]
