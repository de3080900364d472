"""The engine's metrics: declared once, read from one snapshot."""

from __future__ import annotations

import re

import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.metrics import EngineMetrics, IntakeState, kv_usage
from headrace_engine.state.metrics import CacheStats, ScheduleMetrics
from headrace_engine.state.outputs import RowEnd, SequenceUsage
from headrace_kit.metrics import Registry

STATE = ScheduleMetrics(
    pass_id=12,
    running=3,
    waiting=2,
    waiting_by_reason={"blocks": 2},
    slots=8,
    free_blocks=5,
    cached_blocks=1,
    total_blocks=8,
    preemptions=4,
    finished={"stop": 6},
    cache=CacheStats(
        total_blocks=8, held_blocks=2, in_flight_blocks=1, indexed_blocks=9, block_tokens=16
    ),
)


def samples(registry: Registry) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every value by name and label values."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in registry.families()
        for sample in family.samples
    }


def test_the_schedule_is_read_from_the_snapshot() -> None:
    registry = Registry("engine")
    EngineMetrics(registry, lambda: STATE, lambda: IntakeState(held=7, wire_up=False))

    found = samples(registry)

    assert found["headrace_engine_sequences_running", ()] == 3
    assert found["headrace_engine_sequences_waiting_by_reason", ("blocks",)] == 2
    assert found["headrace_engine_passes_total", ()] == 12
    assert found["headrace_engine_sequences_finished_total", ("stop",)] == 6
    assert found["headrace_engine_cache_usage_ratio", ()] == pytest.approx(0.25)
    assert found["headrace_engine_blocks_held", ()] == 2
    assert found["headrace_engine_blocks_in_flight", ()] == 1
    assert found["headrace_engine_blocks_indexed", ()] == 9
    assert found["headrace_engine_requests_held", ()] == 7
    assert found["headrace_engine_wire_up", ()] == 0


def test_an_empty_pool_is_not_in_use() -> None:
    assert kv_usage(ScheduleMetrics()) == 0


def test_every_reason_has_a_series_before_its_first_event() -> None:
    registry = Registry("engine")
    EngineMetrics(registry)

    found = samples(registry)

    for reason in FinishReason:
        assert found["headrace_engine_requests_finished_total", (reason.name.lower(),)] == 0
    for why in ("lost", "released", "failed", "gave_up"):
        assert found["headrace_engine_requests_let_go_total", (why,)] == 0


@pytest.mark.parametrize(
    "name", ["headrace_engine_request_seconds", "headrace_engine_queue_seconds"]
)
def test_buckets_reach_from_ten_milliseconds_to_ten_minutes(name: str) -> None:
    registry = Registry("engine")
    EngineMetrics(registry)

    (declared,) = (made for made in registry.declared() if made.name == name)

    assert {0.01, 600.0} <= set(declared.buckets)


def test_the_time_between_tokens_needs_two_tokens() -> None:
    registry = Registry("engine")
    metrics = EngineMetrics(registry)

    for tokens in (0, 1, 5):
        usage = SequenceUsage(3, tokens, 0, 0.1, 0.2, 2.0, 0)
        metrics.ended(RowEnd(0, FinishReason.STOP, usage))

    found = samples(registry)
    assert found["headrace_engine_inter_token_seconds_count", ()] == 1
    assert found["headrace_engine_inter_token_seconds_sum", ()] == pytest.approx(0.5)
    assert found["headrace_engine_prefill_seconds_count", ()] == 2
    assert found["headrace_engine_output_length_tokens_sum", ()] == 6


def test_the_names_of_other_dashboards_carry_the_same_values() -> None:
    metrics = EngineMetrics(Registry("engine"), lambda: STATE)

    text = metrics.vllm_text('a"b').decode()

    assert 'vllm:num_requests_running{model_name="a\\"b"} 3.0\n' in text
    assert 'vllm:num_requests_waiting{model_name="a\\"b"} 2.0\n' in text
    assert 'vllm:kv_cache_usage_perc{model_name="a\\"b"} 0.25\n' in text
    assert re.search(r'vllm:cache_config_info\{.*block_size="16",num_gpu_blocks="8"\} 1', text)
