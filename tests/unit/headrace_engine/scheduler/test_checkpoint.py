"""Recurrent states: kept where others find them, restored exactly, given up when memory is short."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.prefix_key import fold
from headrace_engine.cache.block import LogicalBlock
from headrace_engine.scheduler.policy import publication_end
from headrace_engine.state.outputs import SequenceUsage
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import RecurrentExecutor, Rig, colliding_fold
from support.engine_machine import StateMachine

BOTH = pytest.mark.parametrize("phases", [1, 2])


def make(phases: int = 1, parts: tuple[int, ...] = (8, 8), **changes: Any) -> Rig:
    fields: dict[str, Any] = {"pool_blocks": 40, "session_tokens": 64, **changes}
    return Rig(executor=RecurrentExecutor(parts), phases=phases, **fields)


def executor(rig: Rig) -> RecurrentExecutor:
    assert isinstance(rig.executor, RecurrentExecutor)
    return rig.executor


def begins(rig: Rig) -> list[int]:
    """Positions at which the sequences that started since the last call began."""
    found = [
        int(batch.begins[batch.slots.tolist().index(start.slot)])
        for batch in executor(rig).batches
        for start in batch.starts
    ]
    executor(rig).batches.clear()
    return found


def checkpoints(rig: Rig) -> list[int]:
    """Positions of kept states, in order."""
    owners = [slot.owner for slot in rig.scheduler.pool.slots.sorted]
    return sorted(owner.offset for owner in owners if not owner.capacity)


def usage(rig: Rig, handle: int) -> SequenceUsage:
    end = rig.choice(handle).end
    assert end is not None
    return end.usage


@BOTH
@pytest.mark.rule("states.exact")
@pytest.mark.parametrize("length", [2, 4, 5, 8, 11, 12, 13])
def test_a_repeated_prompt_begins_at_its_boundary(phases: int, length: int) -> None:
    rig = make(phases)
    handles = [rig.push(list(range(length)), 3)]
    rig.run()
    handles.append(rig.push(list(range(length)), 3))
    rig.run()
    assert begins(rig) == [0, length - 1]
    assert usage(rig, handles[1]).cached_tokens == (length - 1) // 4 * 4
    for handle in handles:
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.exact")
def test_shared_blocks_help_only_up_to_a_state(phases: int) -> None:
    rig = make(phases, cache_prompt="auto", cache_generation="auto", cache_checkpoint_interval=8)
    first = rig.push(list(range(15)), 1)
    rig.run()
    assert checkpoints(rig) == [12], "chunks of 8 end at 8, and the state is due; then at 12"
    assert begins(rig) == [0]
    same = rig.push([*range(12), 50, 51], 2)
    parts = rig.push([*range(8), 50, 51], 2)
    rig.run()
    assert sorted(begins(rig)) == [0, 12]
    assert usage(rig, parts).cached_tokens == 0
    for handle in (first, same, parts):
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.interval")
def test_states_are_kept_once_per_interval_also_while_decoding(phases: int) -> None:
    rig = make(phases, cache_checkpoint_interval=8)
    first = rig.push(list(range(15)), 20)
    rig.run()
    assert checkpoints(rig) == [14, 24, 32, 34], (
        "the prompt's boundary, twice the interval, the end"
    )
    second = rig.push([*range(15), *rig.tokens(first)[:11], 60], 2)
    rig.run()
    assert begins(rig) == [0, 24]
    for handle in (first, second):
        rig.assert_true(handle)
    rig.assert_idle()


@pytest.mark.rule("states.interval")
def test_a_chunk_stops_at_the_prompt_s_boundary_or_where_a_state_is_due() -> None:
    def end(begin: int, end: int, boundary: int = 0, due: int = 8) -> int:
        return publication_end(begin=begin, end=end, boundary=boundary, due=due, block_tokens=4)

    assert end(0, 15, boundary=14) == 14
    assert end(0, 12, boundary=14) == 12
    assert end(0, 14, boundary=14) == 14
    assert end(14, 15, boundary=14) == 15
    assert end(0, 15) == 12
    assert end(0, 7) == 7, "not due"
    assert end(12, 15) == 15, "no boundary of a block on the way"
    assert end(3, 9, due=9) == 9


@BOTH
@pytest.mark.rule("states.left-behind")
def test_the_next_turn_begins_at_the_state_that_was_left_behind(phases: int) -> None:
    rig = make(phases)
    first = rig.push([1, 2, 3, 4, 5], 6)
    rig.run()
    copied = executor(rig).copied
    assert checkpoints(rig) == [4, 10]
    second = rig.push([1, 2, 3, 4, 5, *rig.tokens(first), 7, 8, 9], 2)
    rig.run()
    assert begins(rig) == [0, 10]
    # The block in part, and both parts of the state; then both of the state at its own boundary.
    assert executor(rig).copied == copied + 1 + 2 + 2
    rig.assert_true(second)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.left-behind")
@pytest.mark.parametrize("passes", range(1, 9))
def test_a_cancelled_sequence_leaves_only_a_state_whose_tokens_are_known(
    phases: int, passes: int
) -> None:
    rig = make(phases)
    first = rig.push(list(range(6)), 9)
    for _ in range(passes):
        rig.step()
    rig.cancel(first)
    rig.run()
    second = rig.push([*range(6), *rig.tokens(first), 9, 9], 3)
    third = rig.push([*range(6), *rig.tokens(first)], 3)
    rig.run()
    for handle in (first, second, third):
        rig.assert_true(handle)
    rig.assert_idle()


@pytest.mark.parametrize(
    ("prompt", "generation", "kept"),
    [
        ("all", "all", [4, 8, 12, 16, 18]),
        ("all", "auto", [4, 8, 12, 16]),
        ("all", "none", [4]),
        ("auto", "none", [4]),
        ("auto", "auto", [4, 8, 12, 16]),
    ],
)
def test_modes_say_which_states_stay(prompt: str, generation: str, kept: list[int]) -> None:
    rig = make(cache_prompt=prompt, cache_generation=generation, cache_checkpoint_interval=4)
    first = rig.push([1, 2, 3, 4, 5], 14)
    rig.run()
    assert checkpoints(rig) == kept
    rig.assert_true(first)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.optional")
def test_states_are_given_up_before_anybody_waits_for_memory(phases: int) -> None:
    rig = make(phases, pool_blocks=10, session_tokens=40, cache_checkpoint_interval=4)
    first = rig.push([1] * 20, 3)
    rig.run()
    assert rig.loop.metrics.get().preemptions == 0
    second = rig.push([2] * 20, 12)
    third = rig.push([3] * 3, 3)
    rig.run()
    for handle in (first, second, third):
        rig.assert_true(handle)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.optional")
def test_without_room_for_copies_everything_still_runs(phases: int) -> None:
    rig = make(phases, pool_blocks=4, session_tokens=16, cache_checkpoint_interval=4)
    first = rig.push([1, 2, 3, 4, 5, 6], 2)
    rig.run()
    second = rig.push([1, 2, 3, 4, 5, 6], 2)
    rig.run()
    for handle in (first, second):
        rig.assert_true(handle)
        assert rig.reason(handle) is FinishReason.LENGTH
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.with-their-block")
def test_a_state_goes_with_its_block_and_before_it(phases: int) -> None:
    rig = make(phases, cache_checkpoint_interval=4)
    rig.push(list(range(14)), 1)
    rig.run()
    order = [(s.owner.offset, s.owner.capacity) for s in rig.scheduler.pool.slots.sorted]
    assert order == [(13, 0), (14, 0), (12, 4), (8, 4), (4, 4), (0, 4)]
    pool = rig.scheduler.pool
    block = next(slot.owner for slot in pool.slots.sorted if slot.owner.states)
    pool.invalidate(block)
    assert checkpoints(rig) == []
    rig.assert_idle()


@BOTH
@pytest.mark.rule("states.exact")
@pytest.mark.parametrize("passes", range(2, 12))
def test_a_preempted_sequence_goes_on_with_its_own_state_or_an_earlier_one(
    phases: int, passes: int
) -> None:
    rig = make(phases, pool_blocks=9, session_tokens=36, cache_checkpoint_interval=4)
    slow = rig.push([1] * 9, 12, band=2)
    for _ in range(passes):
        rig.step()
    urgent = rig.push([2] * 11, 5, band=0)
    rig.run()
    for handle in (slow, urgent):
        rig.assert_true(handle)
        assert rig.reason(handle) is FinishReason.LENGTH
    rig.assert_idle()


@BOTH
@pytest.mark.rule("cache.poison-spreads")
@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("tail", [[], [9], [9, 9, 9, 9, 9]])
def test_a_state_of_a_failed_sequence_is_gone_with_all_that_was_made_from_it(
    phases: int, ahead: int, tail: list[int]
) -> None:
    rig = make(phases, cache_checkpoint_interval=4)
    rig.push([1, 2, 3, 4, 5, 6, 7, 8], 30)
    for _ in range(4):
        rig.step()
    second = rig.push([1, 2, 3, 4, 5, 6, 7, 8, *tail], 12)
    for _ in range(2):
        rig.step()
    third = rig.push([1, 2, 3, 4, 5, 6, 7, 8, *tail], 2)
    assert any(b.restores for b in executor(rig).batches)
    executor(rig).fail_rows.add((rig.scheduler.passes + ahead, 0))
    rig.run()
    fourth = rig.push([1, 2, 3, 4, 5, 6, 7, 8, *tail], 4)
    rig.run()
    for handle in (second, third, fourth):
        rig.assert_true(handle)
    rig.assert_idle()


@pytest.mark.rule("states.exact")
@pytest.mark.parametrize("parts", [(8,), (64,), (128,), (8, 100, 8, 8)])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_states_of_any_parts_lie_beside_blocks(parts: tuple[int, ...], size: int) -> None:
    if max(parts) > 8 * size:
        return
    rig = make(
        2, parts, block_tokens=size, pool_blocks=24, prefill_chunk_tokens=16, batch_tokens=40
    )
    handles = [rig.push(list(range(20)), 9, n=2) for _ in range(3)]
    rig.run()
    for handle in handles:
        for choice in (0, 1):
            rig.assert_true(handle, choice)
    assert rig.loop.metrics.get().cache.state_blocks >= 0
    rig.assert_idle()


@pytest.mark.rule("sched.never-fits")
def test_the_state_counts_where_a_prompt_can_never_fit() -> None:
    rig = make(pool_blocks=6, session_tokens=60)
    never, fits = rig.push([1] * 16, 1), rig.push([1] * 15, 9)
    rig.run()
    end = rig.choice(never).end
    assert end is not None
    assert end.code is Code.PROMPT_NEVER_FITS
    assert len(rig.tokens(fits)) == 1, "four blocks are left beside the state"
    rig.assert_true(fits)
    rig.assert_idle()


def test_a_state_that_leaves_no_block_or_is_larger_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match="more than the 64 of a cache block"):
        make(parts=(65,))
    with pytest.raises(ValueError, match="takes 2 blocks of memory; of 2"):
        make(pool_blocks=2)


@pytest.mark.rule("states.with-their-block")
def test_a_state_without_a_block_is_nowhere() -> None:
    rig = make()
    state: LogicalBlock = rig.scheduler.pool.make_checkpoint(4)
    assert not state.allocated
    assert state.refs == 0
    rig.assert_idle()


@pytest.mark.rule("states.exact")
@pytest.mark.rule("states.optional")
@pytest.mark.rule("cache.same-tokens")
@pytest.mark.parametrize(
    ("phases", "colliding", "parts"),
    [(1, False, (8, 8)), (2, False, (8, 8)), (2, False, (8,)), (1, True, (8, 8))],
)
def test_whatever_happens_a_recurrent_sequence_says_what_it_says_alone(
    phases: int, colliding: bool, parts: tuple[int, ...]
) -> None:
    machine = type(
        "Machine",
        (StateMachine,),
        {
            "phases": phases,
            "fold": staticmethod(colliding_fold if colliding else fold),
            "state_parts": parts,
        },
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
