"""commit_results: plans become state, once."""

from __future__ import annotations

from array import array

import pytest
from headrace_engine.scheduler.commit import TableChanges
from headrace_engine.state.sequence import Status
from support.engine import Rig, TokenExactExecutor


@pytest.mark.rule("sched.one-commit")
def test_a_committed_chunk_gives_slot_columns_and_table() -> None:
    rig = Rig(max_batch=2)
    rig.push(list(range(6)), 4)
    executor = rig.executor
    assert isinstance(executor, TokenExactExecutor)
    rig.step()
    (sequence,) = rig.scheduler.residents.sequences.values()
    assert sequence.status is Status.RUNNING
    slot = sequence.slot
    assert slot is not None
    columns = rig.scheduler.residents.columns
    assert columns.planned[slot] == 6
    assert columns.sampled[slot] == columns.known[slot] == 7
    assert columns.capacity[slot] == 8
    batch = executor.batches[0]
    assert batch.table_slots.tolist() == [slot, slot]
    assert batch.table_indices.tolist() == [0, 1]
    blocks = rig.scheduler.residents.holders[sequence.number].blocks
    held = [b.slot.allocation for b in blocks if b.slot is not None]
    assert batch.table_offsets.tolist() == [a.addresses[0] for a in held if a is not None]


@pytest.mark.rule("sched.metadata-ahead")
def test_a_block_is_valid_when_the_pass_that_writes_it_is_committed_not_when_it_is_back() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=2)
    first = rig.push(list(range(8)), 3)
    rig.step()
    assert rig.tokens(first) == []
    second = rig.push([*range(8), 9], 3)
    rig.step()
    started = [b for b in executor.batches if b.starts]
    assert len(started) == 1, "only the first batch has run"
    rig.run()
    chunk = next(b for b in executor.batches if len(b.starts) == 1 and b.pass_id == 2)
    at = int(chunk.slots.tolist().index(chunk.starts[0].slot))
    assert chunk.begins[at] == 8
    rig.assert_true(second)


def test_generating_rows_come_first() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, prefill_chunk_tokens=12, batch_tokens=32)
    rig.push([7], 12)
    rig.step()
    rig.push(list(range(30)), 2)
    rig.run()
    mixed = [b for b in executor.batches if 0 < b.generating < b.rows]
    assert mixed
    for batch in mixed:
        ends = batch.begins + batch.lengths
        assert (ends[batch.generating :] < 30).all()


def test_table_changes_are_columns() -> None:
    changes = TableChanges()
    changes.add(3, array("q", [64, 128]))
    changes.add(1, array("q", [0]))
    columns = [column.tolist() for column in (changes.slots, changes.indices, changes.offsets)]
    assert columns == [[3, 3, 1], [0, 1, 0], [64, 128, 0]]


@pytest.mark.rule("batch.generating-first")
def test_only_the_changes_of_a_block_table_travel() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor)
    rig.push([1, 2, 3], 9)
    rig.run()
    changes = [len(batch.table_slots) for batch in executor.batches]
    assert changes == [1, 0, 1, 0, 0, 0, 1, 0, 0]
