"""Update: tokens to rows, logprobs to who wants them, nothing to who has ended."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_replay import Replayer
from support.engine import Rig, TokenExactExecutor, true_tokens


@pytest.mark.rule("loop.columns")
def test_a_pass_that_only_decodes_touches_no_sequence() -> None:
    rig = Rig(
        audit=False, quantum_passes=100, block_tokens=16, prefill_chunk_tokens=16, pool_blocks=64
    )
    for i in range(4):
        rig.push([i, 1], 40)
    for _ in range(3):
        rig.step()
    residents = rig.scheduler.residents
    sequences = list(residents.sequences.values())
    before = [(s.length, s.status, s.filled) for s in sequences]

    by_slot = residents.by_slot
    residents.by_slot = []  # Looking any sequence up raises IndexError.
    for _ in range(4):
        rig.step()
    residents.by_slot = by_slot
    assert [(s.length, s.status, s.filled) for s in sequences] == before
    for handle in rig.requests:
        assert len(rig.tokens(handle)) == 7
        rig.assert_true(handle)


@pytest.mark.parametrize("phases", [1, 2])
def test_logprobs_go_to_the_rows_that_asked(phases: int) -> None:
    rig = Rig(executor=EchoExecutor(97), phases=phases)
    none = rig.push([1, 2, 3], 4)
    chosen = rig.push([4, 5, 6], 4, logprobs=0)
    three = rig.push([7, 8, 9], 4, logprobs=3)
    rig.run()
    assert rig.choice(none).logprobs == []
    assert [lp.top_ids.shape for lp in rig.choice(chosen).logprobs] == [(1, 0)] * 4
    heard = rig.choice(three).logprobs
    assert [int(lp.top_ids[0, 0]) for lp in heard] == rig.tokens(three) == [7, 8, 9, 7]
    assert all(lp.top_ids.shape == (1, 3) for lp in heard)


def test_the_index_of_a_token_counts_what_earlier_attempts_delivered() -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor)
    rig.push([1, 2], 6, generated=[[5, 6, 7]])
    rig.run()
    assert [int(b.sample_indices[0]) for b in executor.batches] == [3, 4, 5]


def test_a_batch_of_partial_prompts_delivers_nothing() -> None:
    rig = Rig(prefill_chunk_tokens=4, batch_tokens=8)
    handle = rig.push(list(range(12)), 1)
    rig.step()
    assert rig.tokens(handle) == []
    assert rig.choice(handle).started is not None
    assert rig.loop.metrics.get().generated_tokens == 0
    rig.run()
    assert np.array_equal(rig.tokens(handle), rig.tokens(handle)[:1])
    rig.assert_true(handle)


@pytest.mark.rule("cache.poison-spreads")
def test_a_row_that_fails_after_its_request_was_cancelled_leaves_nothing_that_others_read() -> None:
    journal = Journal()
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, journal=journal, phases=2)
    prompt = [1, 2, 3, 4, 5]
    executor.fail_rows.add((1, 0))
    first = rig.push(prompt, 6)
    rig.step()
    second = rig.push(prompt, 6)
    rig.cancel(first)
    rig.run()
    assert rig.reason(first) is FinishReason.CANCELLED
    third = rig.push(prompt, 6)
    rig.run()
    for handle in (second, third):
        assert len(rig.tokens(handle)) == 6
        rig.assert_true(handle)
    rig.assert_idle()
    journal.flush()
    (segment,) = journal.segments
    assert Replayer(segment).run().difference is None


@pytest.mark.rule("cache.poison-spreads")
def test_an_overshoot_row_that_fails_does_not_stay_as_the_last_block_of_its_sequence() -> None:
    prompt = [1, 2, 3, 4, 5]
    said = true_tokens(prompt, 3)
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=2)
    # Pass 1 gives the first token, 2 the second, which ends it; pass 3 is in flight then.
    executor.fail_rows.add((3, 0))
    first = rig.push(prompt, 9, stop_token_ids=frozenset([said[1]]))
    rig.run()
    assert rig.reason(first) is FinishReason.STOP
    assert len(executor.batches) == 3
    second = rig.push([*prompt, *said[:2], 7, 7], 4)
    rig.run()
    rig.assert_true(second)
    rig.assert_idle()
