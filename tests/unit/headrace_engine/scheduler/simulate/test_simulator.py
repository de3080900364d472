"""The simulator loses nothing, repeats itself, and shows what a setting does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.scheduler.simulate.cost import CostModel
from headrace_engine.scheduler.simulate.simulator import simulate
from headrace_engine.scheduler.simulate.summary import summarize
from headrace_engine.scheduler.simulate.trace import Synthetic

SMALL = SchedulerSettings(
    max_batch=8, max_waiting=8, batch_tokens=256, prefill_chunk_tokens=64, session_tokens=1024,
    block_tokens=8, pool_blocks=64, audit=True,
)  # fmt: skip
TRACE = Synthetic(requests=40, rate=200, prompt_tokens=60, output_tokens=20, prefix_groups=2)


@pytest.mark.rule("simulate.conserves")
@pytest.mark.parametrize("phases", [1, 2])
def test_every_request_ends_with_every_token_it_asked_for(phases: int) -> None:
    result = simulate(TRACE.items(), replace(SMALL, phases=phases), CostModel())
    assert result.counters.preemptions > 0, "the memory is not short enough for this test"
    for outcome in result.outcomes:
        assert outcome.end == "length"
        assert outcome.tokens == outcome.item.output_tokens
        assert outcome.first_token_s is not None
        assert outcome.first_token_s > outcome.item.arrival_s
    tokens = sum(outcome.tokens for outcome in result.outcomes)
    assert len(result.gaps_s) == tokens - len(result.outcomes)


@pytest.mark.rule("simulate.conserves")
def test_what_cannot_run_or_is_given_up_is_counted_and_not_lost() -> None:
    items = TRACE.items()
    huge = replace(items[0], prompt_tokens=1024)
    impatient = replace(items[1], cancel_s=items[1].arrival_s + 0.01)
    late = replace(items[2], cancel_s=items[2].arrival_s)
    result = simulate([huge, impatient, late, *items[3:]], SMALL, CostModel())
    ends = [outcome.end for outcome in result.outcomes]
    assert ends[:3] == ["refused", "cancelled", "cancelled"]
    assert set(ends[3:]) == {"length"}
    figures = summarize(result)
    assert figures["requests"] == 40
    assert (figures["finished"], figures["refused"], figures["cancelled"]) == (37, 1, 2)


@pytest.mark.rule("simulate.deterministic")
def test_the_same_arguments_give_the_same_figures() -> None:
    first, again = (summarize(simulate(TRACE.items(), SMALL, CostModel())) for _ in range(2))
    assert first == again
    other = summarize(simulate(replace(TRACE, seed=1).items(), SMALL, CostModel()))
    assert first != other


def test_without_a_prefix_cache_nothing_is_found_and_it_takes_longer() -> None:
    large = replace(SMALL, pool_blocks=1024)
    found = simulate(TRACE.items(), large, CostModel())
    plain = simulate(TRACE.items(), replace(large, prefix_cache=False), CostModel())
    assert found.counters.cached_tokens > 0
    assert plain.counters.cached_tokens == 0
    assert plain.busy_s > found.busy_s


def test_a_step_target_bounds_the_gaps_between_tokens() -> None:
    settings = replace(SMALL, pool_blocks=1024, prefill_chunk_tokens=128)
    cost = CostModel(base_s=0.001, prefill_token_s=1e-3)
    slow = simulate(TRACE.items(), settings, cost)
    paced = simulate(TRACE.items(), replace(settings, step_target_ms=20.0), cost)
    assert paced.gaps_s.mean() < slow.gaps_s.mean()
    assert all(outcome.end == "length" for outcome in paced.outcomes)
