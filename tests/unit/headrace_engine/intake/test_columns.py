"""Rows of passes, merged and selected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_engine.intake.columns import Rows, from_outputs, merge, row_key, select, spans
from headrace_engine.state.outputs import (
    PassOutputs,
    RowEnd,
    RowLogprobs,
    RowStarted,
    SequenceUsage,
)
from headrace_engine.state.request import RequestHandle
from hypothesis import given
from hypothesis import strategies as st

USAGE = SequenceUsage(3, 1, 0, 0.0, 0.0, 0.0, 0)


def rows_of(items: Sequence[tuple[int, int, list[int]]], pass_id: int = 1) -> Rows:
    """Rows from (key, first, tokens)."""
    return Rows(
        pass_id=pass_id,
        keys=np.array([key for key, _, _ in items], np.int64),
        firsts=np.array([first for _, first, _ in items], np.int32),
        counts=np.array([len(tokens) for _, _, tokens in items], np.int32),
        tokens=np.array([token for _, _, tokens in items for token in tokens], np.int32),
    )


def as_dict(rows: Rows) -> dict[int, tuple[int, list[int]]]:
    """First index and tokens of each key."""
    found: dict[int, tuple[int, list[int]]] = {}
    offset = 0
    for key, first, count in zip(
        rows.keys.tolist(), rows.firsts.tolist(), rows.counts.tolist(), strict=True
    ):
        assert key not in found
        found[key] = (first, rows.tokens[offset : offset + count].tolist())
        offset += count
    assert offset == len(rows.tokens)
    return found


def test_merging_joins_the_tokens_of_each_choice_in_the_order_of_the_passes() -> None:
    merged = merge([rows_of([(7, 0, [1]), (3, 4, [2])], 1), rows_of([(3, 5, [9]), (7, 1, [8])], 2)])

    assert as_dict(merged) == {3: (4, [2, 9]), 7: (0, [1, 8])}
    assert merged.pass_id == 2


def test_a_single_pass_is_not_copied() -> None:
    rows = rows_of([(1, 0, [5])])

    assert merge([rows]) is rows


def test_side_columns_follow_their_rows() -> None:
    end = RowEnd(0, FinishReason.STOP, USAGE)
    start = RowStarted(1, 3, 0, 0.0)
    first = rows_of([(9, 0, []), (2, 0, [4])])
    second = rows_of([(2, 1, [5])])
    first.starts.append((1, start))
    second.ends.append((0, end))

    merged = merge([first, second])

    where = merged.keys.tolist().index(2)
    assert merged.starts == [(where, start)]
    assert merged.ends == [(where, end)]


def test_selecting_keeps_rows_their_tokens_and_their_side_columns() -> None:
    end = RowEnd(0, FinishReason.STOP, USAGE)
    rows = rows_of([(1, 0, [10, 11]), (2, 3, [20]), (3, 0, [])])
    rows.ends.extend([(0, end), (2, end)])

    kept = select(rows, np.array([False, True, True]))

    assert as_dict(kept) == {2: (3, [20]), 3: (0, [])}
    assert kept.ends == [(1, end)]


def test_outputs_are_named_by_request_and_choice() -> None:
    item = RowLogprobs(
        1, np.zeros(1, np.float32), np.zeros((1, 0), np.int32), np.zeros((1, 0), np.float32)
    )
    outputs = PassOutputs(
        pass_id=4,
        handles=np.array([5, 5], np.int64),
        choices=np.array([0, 1], np.int32),
        firsts=np.array([0, 2], np.int32),
        counts=np.array([1, 1], np.int32),
        tokens=np.array([30, 31], np.int32),
        ends=[RowEnd(0, FinishReason.LENGTH, USAGE)],
        logprobs=[item],
    )

    rows = from_outputs(outputs)

    handle = RequestHandle(5)
    assert as_dict(rows) == {row_key(handle, 0): (0, [30]), row_key(handle, 1): (2, [31])}
    assert [row for row, _ in rows.ends] == [0]
    assert rows.logprobs == [(1, item)]


def test_spans_lists_the_indices_of_every_range() -> None:
    assert spans(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6), min_size=1),
    st.sets(st.integers(0, 5)),
)
def test_merging_and_selecting_agree_with_a_plain_dictionary(
    passes: list[list[tuple[int, int]]], dropped: set[int]
) -> None:
    told: dict[int, list[int]] = {}
    chunks: list[Rows] = []
    token = 0
    for counted in passes:
        items: list[tuple[int, int, list[int]]] = []
        for key, count in dict(counted).items():
            tokens = list(range(token, token + count))
            token += count
            items.append((key, len(told.setdefault(key, [])), tokens))
            told[key] += tokens
        chunks.append(rows_of(items))

    merged = merge(chunks)
    kept = select(merged, ~np.isin(merged.keys, list(dropped)))

    assert as_dict(merged) == {key: (0, tokens) for key, tokens in told.items()}
    assert as_dict(kept) == {key: (0, tokens) for key, tokens in told.items() if key not in dropped}
