"""The scheduler's policy, seen from outside: who runs, who waits and why, who loses memory."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.scheduler.reasons import Reason
from support.engine import Rig, TokenExactExecutor, true_tokens

BOTH = pytest.mark.parametrize("phases", [1, 2])


@BOTH
@pytest.mark.rule("sched.decode-first")
def test_a_long_prompt_does_not_stop_who_decodes(phases: int) -> None:
    executor = TokenExactExecutor()
    rig = Rig(
        executor=executor, phases=phases, session_tokens=200, pool_blocks=100, batch_tokens=64
    )
    first = rig.push([1, 2], 60)
    for _ in range(6):
        rig.step()
    long = rig.push(list(range(90)), 2)
    while rig.reason(first) is None:
        before = len(rig.tokens(first))
        rig.step()
        assert len(rig.tokens(first)) == before + 1
    rig.run()
    assert rig.reason(long) is FinishReason.LENGTH
    for batch in executor.batches:
        decodes = int(batch.autoregressive.sum())
        if decodes:
            assert len(batch.tokens) - decodes <= 8, "the chunk limit beside decodes"


@BOTH
def test_a_short_prompt_behind_a_long_one_is_not_frozen_and_the_long_one_not_starved(
    phases: int,
) -> None:
    rig = Rig(phases=phases, session_tokens=200, pool_blocks=200, batch_tokens=64, max_batch=6)
    runner = rig.push([1], 150)
    for _ in range(3):
        rig.step()
    long = rig.push(list(range(90)), 1)
    rig.step()
    short = rig.push([7, 8, 9], 1)
    while rig.reason(short) is None:
        rig.step()
    assert rig.reason(long) is None
    fed = passes = 0
    while rig.reason(long) is None:
        if rig.scheduler.residents.free_slots > 1:
            rig.push([fed % 90, 5], 1)
            fed += 1
        rig.step()
        passes += 1
    assert passes <= 2 * -(-90 // 4)
    assert rig.reason(runner) is None


@pytest.mark.rule("sched.no-overtaking")
def test_younger_sequence_waits_behind_an_older_one_that_is_short_of_blocks() -> None:
    rig = Rig(pool_blocks=6, session_tokens=24, prefill_chunk_tokens=16)
    runs = rig.push([1] * 14, 9)
    for _ in range(2):
        rig.step()
    old = rig.push([2] * 14, 3)
    young = rig.push([3], 3)
    rig.step()
    residents = rig.scheduler.residents
    numbers = {s.request.handle: s.number for s in residents.sequences.values()}
    waiting = residents.reasons.of(numbers[old])
    assert waiting is not None
    assert waiting.reason is Reason.BLOCKS
    assert waiting.detail == 2
    behind = residents.reasons.of(numbers[young])
    assert behind is not None
    assert behind.reason is Reason.PRIORITY
    assert residents.reasons.of(numbers[runs]) is None
    assert rig.loop.scheduler.residents.reasons.counts() == {"blocks": 1, "priority": 1}
    rig.run()
    rig.assert_idle()


@pytest.mark.rule("reasons.exactly-one")
def test_each_waiting_sequence_has_its_reason() -> None:
    rig = Rig(max_batch=2, phases=2)
    for i in range(4):
        rig.push([i] * 3, 20)
    rig.step()
    rig.step()
    assert rig.scheduler.residents.reasons.counts() == {"batch_rows": 2}
    metrics = rig.loop.metrics.get()
    assert metrics.waiting == sum(metrics.waiting_by_reason.values()) == 2

    rig = Rig(max_batch=4, prefill_chunk_tokens=4, batch_tokens=8, session_tokens=40)
    rig.push([1], 20)
    rig.step()
    rig.push([2] * 30, 2)
    for i in range(2):
        rig.push([i + 3] * 9, 2)
        rig.step()
    assert "token_budget" in rig.scheduler.residents.reasons.counts()
    rig.run()


@BOTH
@pytest.mark.rule("sched.one-producer")
def test_identical_prompts_in_one_burst_are_computed_once(phases: int) -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=phases, prefill_chunk_tokens=16)
    prompt = list(range(13))
    handles = [rig.push(prompt, 3) for _ in range(4)]
    rig.step()
    assert rig.scheduler.residents.reasons.counts() == {"producer": 3}
    rig.run()
    prefilled = sum(int(b.lengths[~b.autoregressive].sum()) for b in executor.batches)
    assert prefilled == 13 + 3 * 1
    for handle in handles:
        rig.assert_true(handle)
    assert rig.loop.metrics.get().deferrals >= 3
    rig.assert_idle()


@BOTH
def test_choices_of_one_request_share_the_prompt(phases: int) -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=phases, prefill_chunk_tokens=16)
    handle = rig.push(list(range(14)), 5, n=4)
    rig.run()
    prefilled = sum(int(b.lengths[~b.autoregressive].sum()) for b in executor.batches)
    assert prefilled == 14 + 3, "the others compute the prompt's last token alone"
    answers = [tuple(rig.tokens(handle, c)) for c in range(4)]
    assert len(set(answers)) == 4
    for choice in range(4):
        rig.assert_true(handle, choice)
    rig.assert_idle()


@BOTH
@pytest.mark.rule("cache.same-tokens")
@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 32])
def test_edges_of_blocks_give_the_same_tokens_with_and_without_cache(
    phases: int, length: int
) -> None:
    prompt = [(28, 23)[i % 2] for i in range(length)]
    rig = Rig(phases=phases, pool_blocks=64)
    plain = Rig(phases=phases, pool_blocks=64, prefix_cache=False)
    cached: list[int] = []
    for _ in range(3):
        handle = rig.push(prompt, 8)
        rig.run()
        rig.assert_true(handle)
        end = rig.choice(handle).end
        assert end is not None
        cached.append(end.usage.cached_tokens)
    whole = (length - 1) // 4 * 4
    assert cached == [0, whole, whole]
    handle = plain.push(prompt, 8)
    plain.run()
    assert plain.tokens(handle) == true_tokens(prompt, 8)
    end = plain.choice(handle).end
    assert end is not None
    assert end.usage.cached_tokens == 0
    second = rig.push([*prompt, *rig.tokens(1), 5], 2)
    rig.run()
    end = rig.choice(second).end
    assert end is not None
    assert end.usage.cached_tokens == (length + 7) // 4 * 4
    rig.assert_idle()


@pytest.mark.rule("sched.never-fits")
@BOTH
def test_what_can_never_fit_is_refused_at_once_and_stops_nobody(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=32, block_tokens=16, session_tokens=2048,
              batch_tokens=64, prefill_chunk_tokens=32)  # fmt: skip
    never = rig.push([1] * 600, 1)
    edge = rig.push([1] * 512, 1)
    small = [rig.push([i, 2], 4) for i in range(5)]
    rig.step()
    for handle in (never, edge):
        end = rig.choice(handle).end
        assert end is not None
        assert end.code is Code.PROMPT_NEVER_FITS
        assert "pool has 32" in end.message
    rig.run()
    assert all(rig.reason(h) is FinishReason.LENGTH for h in small)
    grows = rig.push([5] * 300, 400)
    rig.run(400)
    end = rig.choice(grows).end
    assert end is not None
    assert end.reason is FinishReason.LENGTH
    assert len(rig.tokens(grows)) == 212
    assert "512 tokens" in end.message
    fits = rig.push([6] * 511, 5)
    rig.run()
    assert len(rig.tokens(fits)) == 1
    rig.assert_idle()


@pytest.mark.rule("sched.stalled-head")
def test_the_head_of_the_line_fails_when_nothing_will_ever_free_memory() -> None:
    rig = Rig(pool_blocks=8, audit=False)
    lost = [rig.scheduler.objects.alloc(rig.scheduler.pool.block_type) for _ in range(6)]
    first = rig.push([1] * 12, 4)
    second = rig.push([2], 3)
    rig.run(20)
    end = rig.choice(first).end
    assert end is not None
    assert end.code is Code.OUT_OF_MEMORY
    assert rig.reason(second) is FinishReason.LENGTH
    third = rig.push([3] * 4, 30)
    rig.run(100)
    end = rig.choice(third).end
    assert end is not None
    assert end.reason is FinishReason.LENGTH, "it had generated: what it has is its answer"
    assert end.message
    assert all(lost)


@BOTH
@pytest.mark.rule("sched.memory-by-order")
def test_preemption_takes_blocks_from_the_last_and_its_answer_does_not_change(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=7, session_tokens=28, prefill_chunk_tokens=8)
    first = rig.push([1, 2, 3], 20)
    last = rig.push([4, 5, 6], 20)
    rig.run()
    for handle in (first, last):
        assert len(rig.tokens(handle)) == 20
        rig.assert_true(handle)
    ends = [rig.choice(h).end for h in (first, last)]
    preemptions = [e.usage.preemptions for e in ends if e]
    assert preemptions[0] == 0
    assert preemptions[1] >= 1
    assert rig.loop.metrics.get().recomputed_tokens > 0
    rig.assert_idle()


@pytest.mark.rule("sched.memory-by-order")
@BOTH
@pytest.mark.parametrize("passes", range(1, 7))
def test_an_urgent_band_takes_memory_from_one_that_runs(phases: int, passes: int) -> None:
    rig = Rig(phases=phases, pool_blocks=6, session_tokens=24, prefill_chunk_tokens=16)
    slow = rig.push([1] * 14, 8, band=2)
    for _ in range(passes):
        rig.step()
    urgent = rig.push([2] * 14, 3, band=0)
    while rig.reason(urgent) is None:
        rig.step()
    assert rig.reason(slow) is None
    rig.run()
    for handle in (slow, urgent):
        rig.assert_true(handle)
    rig.assert_idle()


@pytest.mark.rule("cache.salted-roots")
def test_tenants_and_salts_do_not_share() -> None:
    rig = Rig()
    prompt = list(range(12))
    cached: list[int] = []
    for fields in (
        {"tenant": "a"}, {"tenant": "b"}, {"cache_salt": b"a"}, {"cache_salt": b"b"}, {},
        {"tenant": "a"},
    ):  # fmt: skip
        handle = rig.push(prompt, 1, **fields)
        rig.run()
        end = rig.choice(handle).end
        assert end is not None
        cached.append(end.usage.cached_tokens)
    assert cached == [0, 0, 0, 0, 0, 8]


@BOTH
def test_only_an_unbroken_prefix_counts_as_cached_after_eviction(phases: int) -> None:
    rig = Rig(phases=phases, pool_blocks=14, session_tokens=56, prefill_chunk_tokens=16)
    prompt = list(range(40))
    rig.push(prompt, 1)
    rig.run()
    for i in range(4):
        rig.push([60 + i] * 9, 2)
        rig.run()
    again = rig.push(prompt, 2)
    changed = rig.push([90, *prompt[1:]], 2)
    rig.run()
    for handle in (again, changed):
        rig.assert_true(handle)
    usage = [rig.choice(h).end for h in (again, changed)]
    cached = [e.usage.cached_tokens for e in usage if e]
    assert 0 < cached[0] < 39
    assert cached[0] % 4 == 0
    assert cached[1] == 0
    rig.assert_idle()


def test_fair_shares_follow_the_weights() -> None:
    rig = Rig(max_batch=2, quantum_passes=2, tenant_weights={"heavy": 1.0, "light": 1.0},
              max_waiting=400, audit=False)  # fmt: skip
    for i in range(200):
        rig.push([i % 90, 1, 2], 4, tenant="heavy")
        if i % 10 == 0:
            for j in range(4):
                rig.push([j, i % 90, 3], 4, tenant="light")
    done = {"heavy": 0, "light": 0}
    for _ in range(150):
        rig.step()
    for handle, request in rig.requests.items():
        done[request.tenant] += len(rig.tokens(handle))
    assert done["light"] == pytest.approx(done["heavy"], rel=0.1)


def test_a_storm_of_cancels_leaves_nothing() -> None:
    rig = Rig(max_batch=4, max_waiting=2000, audit=False, phases=2)
    random = np.random.default_rng(1)
    handles = [rig.push([i % 90, 1, 2, 3, 4], 5) for i in range(1000)]
    for _ in range(5):
        rig.step()
    for handle in random.permutation(handles).tolist():
        rig.cancel(rig.requests[handle].handle)
        if handle % 50 == 0:
            rig.step()
    rig.run()
    assert all(rig.reason(h) is not None for h in handles)
    after = rig.push([1, 2], 3)
    rig.run()
    rig.assert_true(after)
    rig.assert_idle()


@BOTH
@pytest.mark.parametrize("length", [5, 6, 7])
def test_blocks_of_one_token_hold_up_to_the_edge_of_a_session(phases: int, length: int) -> None:
    rig = Rig(phases=phases, block_tokens=1, session_tokens=8, pool_blocks=10, max_batch=2)
    first, again = rig.push(list(range(length)), 9), rig.push(list(range(length)), 9)
    rig.run()
    for handle in (first, again):
        rig.assert_true(handle)
        assert len(rig.tokens(handle)) == 8 - length
        assert rig.reason(handle) is FinishReason.LENGTH
    third = rig.push(list(range(length)), 1)
    rig.run()
    end = rig.choice(third).end
    assert end is not None
    assert end.usage.cached_tokens == length - 1
    rig.assert_idle()
