"""Policy: arithmetic with a reason."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from headrace_engine.scheduler.policy import chunk_end, may_take, prefill_budget, prefill_share
from hypothesis import given


def test_beside_decodes_only_a_chunk_is_computed_alone_all_that_fits() -> None:
    assert prefill_budget(decoding=0, batch_tokens=100, chunk_tokens=16) == 100
    assert prefill_budget(decoding=10, batch_tokens=100, chunk_tokens=16) == 16
    assert prefill_budget(decoding=90, batch_tokens=100, chunk_tokens=16) == 10


def test_a_pass_that_decodes_fills_a_size_at_which_batches_run() -> None:
    def total(decoding: int, chunk: int) -> int:
        budget = prefill_budget(
            decoding=decoding,
            batch_tokens=8448,
            chunk_tokens=chunk,
            block_tokens=64,
            step_tokens=256,
        )
        assert 64 <= budget <= chunk, "a prompt advances in every pass"
        return decoding + budget

    assert total(200, 3900) == 4096
    assert total(256, 8192) == 8448
    assert total(100, 8192) == 8192
    # Not at the price of most of the chunk, and not where nothing decodes.
    assert total(250, 64) == 314
    assert total(10, 400) == 256
    assert total(10, 300) == 256
    assert total(200, 100) == 300
    assert prefill_budget(decoding=0, batch_tokens=8400, chunk_tokens=64, step_tokens=256) == 8400
    for decoding in range(1, 257):
        for chunk in (64, 65, 100, 127, 128, 255, 256, 300):
            total(decoding, chunk)


@pytest.mark.rule("sched.chunk-ends")
@given(
    begin=st.integers(0, 200),
    rest=st.integers(1, 200),
    budget=st.integers(0, 100),
    block=st.integers(1, 32),
)
def test_a_chunk_ends_at_a_block_or_at_the_contexts_end(
    begin: int, rest: int, budget: int, block: int
) -> None:
    end = chunk_end(begin=begin, context=begin + rest, budget=budget, block_tokens=block)
    assert begin <= end <= begin + min(rest, budget)
    assert end == begin or end == begin + rest or end % block == 0
    if budget >= block:
        assert end > begin, "a whole block of budget always makes progress"


@given(
    budget=st.integers(0, 500),
    spent=st.integers(0, 500),
    contenders=st.integers(0, 9),
    block=st.integers(1, 64),
)
def test_a_share_leaves_room_for_others_but_never_stops_the_first(
    budget: int, spent: int, contenders: int, block: int
) -> None:
    whole = budget + spent
    share = prefill_share(budget=budget, whole=whole, contenders=contenders, block_tokens=block)
    assert 0 <= share <= budget
    if contenders <= 1:
        assert share == budget
    else:
        assert share >= min(budget, max(block, whole // 4))
        assert share <= max(budget // 2, block, whole // 4)


def test_prompts_of_a_quarter_of_a_pass_are_not_cut() -> None:
    left, shares = 8448, list[int]()
    for waiting in range(16, 0, -1):
        share = prefill_share(budget=left, whole=8448, contenders=waiting, block_tokens=64)
        shares.append(min(share, 2048))
        left -= shares[-1]
    assert shares == [2048, 2048, 2048, 2048, 256] + [0] * 11


@pytest.mark.rule("sched.hysteresis")
def test_who_waits_takes_from_who_runs_only_across_bands_or_within_a_tenant() -> None:
    first, second, urgent = (1, 0, 8.0, 5), (1, 1, 8.0, 4), (0, 9, 8.0, 9)
    waits = {"taker_runs": False, "victim_runs": True}
    assert not may_take(first, second, same_tenant=False, **waits)
    assert may_take(first, (1, 0, 8.0, 6), same_tenant=True, **waits)
    came_first = (1, 0, 9.0, 4)
    assert not may_take(first, came_first, same_tenant=True, **waits), (
        "it only has to be done first"
    )
    assert may_take(first, came_first, taker_runs=True, victim_runs=True, same_tenant=True)
    assert may_take(urgent, first, same_tenant=False, **waits)
    assert may_take(first, second, taker_runs=True, victim_runs=True, same_tenant=False)
    assert may_take(first, second, taker_runs=False, victim_runs=False, same_tenant=False)


def test_nobody_takes_from_who_goes_first() -> None:
    for same in (True, False):
        for runs in (True, False):
            assert not may_take(
                (1, 0, 9.0, 5), (1, 0, 9.0, 4), taker_runs=runs, victim_runs=False, same_tenant=same
            )
            assert not may_take(
                (1, 0, 9.0, 5), (1, 0, 9.0, 5), taker_runs=runs, victim_runs=runs, same_tenant=same
            )
