"""Which rows of a decode step are found to begin alike."""

from __future__ import annotations

import numpy as np
import pytest
from support.batch import slot_sampling
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_sharing import LEAST_GROUP, Sharing, common_beginnings
from headrace_engine.state.batch import BatchData, SlotStart
from torch import Tensor

pytestmark = pytest.mark.torch


def values(tensor: Tensor) -> list[int]:
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def test_a_group_shares_what_all_of_it_has_in_full() -> None:
    tables = np.array([[7, 8, 9, 1]] * 3 + [[7, 8, 5, 2]] + [[4, 8, 9, 1]] * 2, np.int64)
    shared, groups = common_beginnings(tables, np.array([3, 4, 3, 4, 3, 3], np.int32))
    assert shared.tolist() == [2, 2, 2, 2, 0, 0]
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3]]


def test_the_shortest_row_bounds_a_group_and_a_row_without_a_full_block_is_in_none() -> None:
    tables = np.array([[7, 8, 9]] * (LEAST_GROUP + 1), np.int64)
    whole = np.array([0] + [2] * LEAST_GROUP, np.int32)
    shared, groups = common_beginnings(tables, whole)
    assert shared.tolist() == [0] + [2] * LEAST_GROUP
    assert len(groups) == 1


def test_what_a_table_still_holds_behind_its_context_is_no_beginning() -> None:
    """Slots are used again; the entries of whoever was there before stay."""
    tables = np.array([[7, 3, 3]] * LEAST_GROUP, np.int64)
    shared, _ = common_beginnings(tables, np.array([1] * LEAST_GROUP, np.int32))
    assert shared.tolist() == [1] * LEAST_GROUP


def sharing() -> Sharing:
    return Sharing(33, 32, 40, block_tokens=16, heads=4, kv_heads=1, device=torch.device(DEVICE))


def batch(rows: int, begin: int, common: int, *, starts: bool) -> BatchData:
    """Rows at position ``begin``, the first ``common`` blocks of which are the same."""
    zeros = np.zeros(rows, np.int32)
    made = BatchData(
        pass_id=1,
        phase=0,
        generating=rows,
        slots=np.arange(rows, dtype=np.int32),
        begins=zeros + np.int32(begin),
        lengths=zeros + np.int32(1),
        autoregressive=np.ones(rows, np.bool_),
        sample_indices=zeros,
        tokens=zeros,
        token_offsets=np.arange(rows + 1, dtype=np.int32),
        store_from=zeros,
    )
    if starts:
        blocks = begin // 16 + 1
        changes = [
            (s, b, b if b < common else 1000 * (s + 1) + b)
            for s in range(rows)
            for b in range(blocks)
        ]
        slots, indices, offsets = zip(*changes, strict=True)
        made.table_slots = np.array(slots, np.int32)
        made.table_indices = np.array(indices, np.int32)
        made.table_offsets = np.array(offsets, np.int64)
    return made


def test_rows_that_mostly_share_run_together_until_their_own_part_is_long() -> None:
    looked = sharing()
    first = batch(20, 100, 5, starts=True)
    looked.applied(first)
    assert looked.worth(first, 24)
    assert values(looked.rows(24).shared) == [80] * 20 + [0] * 4
    members = looked.rows(24).members
    assert values(members[0]) == list(range(16))
    assert values(members[1]) == [16, 17, 18, 19] + [-1] * 12
    assert (members[2:] == -1).all()
    assert looked.worth(batch(20, 101, 5, starts=False), 24)
    assert not looked.worth(batch(20, 80 + 1024, 5, starts=False), 24)


def test_few_rows_or_little_in_common_are_left_alone() -> None:
    few, apart = batch(8, 100, 5, starts=True), batch(20, 500, 2, starts=True)
    for each in (few, apart):
        looked = sharing()
        looked.applied(each)
        assert not looked.worth(each, 24)


def test_a_start_in_the_same_slots_makes_the_groups_anew() -> None:
    looked = sharing()
    first = batch(20, 100, 5, starts=True)
    looked.applied(first)
    assert looked.worth(first, 24)
    # The same slots run again, but slots 12 to 19 with others' texts, which share two blocks.
    other = batch(20, 100, 5, starts=True)
    changed = other.table_slots >= 12
    other.table_slots = other.table_slots[changed]
    other.table_indices = other.table_indices[changed]
    other.table_offsets = other.table_offsets[changed] + 1_000_000
    own = other.table_indices >= 2
    other.table_offsets[own] += other.table_slots[own] * 1000
    tokens = np.zeros(101, np.int32)
    other.starts = [SlotStart(s, tokens, 101, 0, slot_sampling()) for s in range(12, 20)]
    looked.applied(other)
    step = batch(20, 100, 5, starts=False)
    assert looked.worth(step, 24)
    rows = looked.rows(24)
    assert values(rows.shared) == [80] * 12 + [32] * 8 + [0] * 4
    assert values(rows.members[0]) == [*range(12), -1, -1, -1, -1]
    assert values(rows.members[1]) == [*range(12, 20)] + [-1] * 8
