"""Plans: where a sequence goes on; nothing is changed by asking."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.scheduler.plan import plan_continue, plan_further, plan_resume
from headrace_engine.state.sequence import SequenceColumns
from support.cache import CacheRig, content

A, B = content(1, 2, 3, 4), content(5, 6, 7, 8)


def held(*, private_tail: bool = True) -> tuple[CacheRig, SequenceBlocks]:
    rig = CacheRig()
    holder = rig.enter()
    rig.fill(holder, A, B)
    if private_tail:
        rig.give_memory(rig.pool.extend(holder))
    return rig, holder


def test_a_shared_prefix_is_resumed_at_its_end_and_read_only() -> None:
    _, holder = held()
    plan = plan_resume(holder, known=11, filled=0, lost=set())
    assert (plan.resume, plan.store_from, plan.missing) == (8, 8, ())


@pytest.mark.rule("sched.at-least-one-token")
def test_a_prompt_that_is_wholly_cached_computes_its_last_token_without_storing_it() -> None:
    _, holder = held(private_tail=False)
    plan = plan_resume(holder, known=8, filled=0, lost=set())
    assert plan.resume == 7
    assert plan.store_from == 8


def test_a_private_block_is_valid_as_far_as_it_was_written() -> None:
    _, holder = held()
    plan = plan_resume(holder, known=11, filled=9, lost=set())
    assert (plan.resume, plan.store_from) == (9, 8)


def test_the_walk_stops_where_memory_or_validity_is_missing() -> None:
    _, holder = held()
    assert plan_resume(holder, known=11, filled=11, lost={holder.blocks[1]}).resume == 4
    holder.blocks[0].valid = False
    plan = plan_resume(holder, known=11, filled=11, lost=set())
    assert (plan.resume, plan.store_from) == (0, 0)


def test_a_run_that_was_seen_to_be_valid_is_looked_at_again_when_it_is_not() -> None:
    rig, holder = held()
    for _ in range(2):
        assert plan_resume(holder, known=11, filled=11, lost=set()).resume == 10
    assert holder.blocks[1].run.valid
    rig.objects.free(rig.pool.unpin(holder.blocks[1]))
    assert plan_resume(holder, known=11, filled=11, lost=set()).resume == 4
    rig.give_memory(holder.blocks[1])
    assert plan_resume(holder, known=11, filled=11, lost=set()).resume == 10
    rig.pool.invalidate(holder.blocks[0])
    assert plan_resume(holder, known=11, filled=11, lost=set()).resume == 0


def test_what_lacks_memory_is_listed_also_if_this_pass_took_it() -> None:
    rig, holder = held()
    rig.pool.extend(holder)
    plan = plan_resume(holder, known=14, filled=0, lost={holder.blocks[1]})
    assert plan.missing == (holder.blocks[1], holder.blocks[3])


def test_one_that_runs_goes_on_where_it_is_or_behind_what_became_valid() -> None:
    rig, holder = held()
    rig.give_memory(rig.pool.extend(holder), valid=False)
    for begin, resume, store_from in ((3, 8, 8), (8, 8, 8), (9, 9, 8), (12, 12, 12)):
        plan = plan_further(holder, known=15, begin=begin, lost=set())
        assert plan == (resume, store_from, ())
    assert plan_further(holder, known=8, begin=3, lost=set()).resume == 7


@pytest.mark.rule("sched.planning-is-free")
def test_planning_changes_nothing() -> None:
    rig, holder = held()
    before = [(b.refs, b.valid, b.allocated) for b in holder.blocks]
    live = rig.objects.live
    for known in (9, 10, 11):
        plan_resume(holder, known=known, filled=9, lost=set())
    assert [(b.refs, b.valid, b.allocated) for b in holder.blocks] == before
    assert rig.objects.live == live
    rig.audit()


def test_decoding_rows_are_those_that_want_a_token_and_some_need_a_block() -> None:
    columns = SequenceColumns(4, 4)
    columns.limit[:] = 20
    columns.planned[:] = [3, 4, 7, 19]
    columns.capacity[:] = [4, 4, 8, 20]
    columns.sampled[:] = [4, 5, 8, 20]
    decodes, crossing = plan_continue(columns, np.arange(4))
    assert decodes.slots.tolist() == [0, 1, 2]
    assert decodes.begins.tolist() == [3, 4, 7]
    assert crossing.tolist() == [1]
