"""What is pushed over OTLP equals what Prometheus reads; checked at a real receiver."""

from __future__ import annotations

import pytest
from headrace_kit.metrics import OtlpName, Registry
from support.otlp import otlp_receiver


def filled() -> Registry:
    registry = Registry(service="engine", version="1.2.3")
    counter = registry.counter("headrace_engine_ends_total", "Ends.", labels=("reason",))
    counter.labels("stop").inc(3)
    counter.labels("length").inc(1)
    registry.gauge("headrace_engine_free_blocks", "Free.").set(17)
    wait = registry.histogram(
        "headrace_engine_step_seconds", "Steps.", buckets=(0.1, 1.0), labels=("kind",)
    )
    for seconds in (0.05, 0.5, 0.5, 7.0):
        wait.labels("decode").observe(seconds)
    registry.callback("headrace_engine_passes_total", "Passes.", "counter", lambda: 9)
    return registry


def test_pushed_values_equal_the_exposed_ones() -> None:
    registry = filled()
    with otlp_receiver() as receiver:
        registry.start_otlp(receiver.endpoint, interval_s=0.05)
        receiver.wait_for_pushes(2)
        registry.close()
        pushed = receiver.newest_metrics()
        resource = {a.key: a.value.string_value for a in receiver.metrics[-1].resource.attributes}
    assert resource["service.name"] == "headrace-engine"
    assert resource["service.version"] == "1.2.3"
    assert set(pushed) == {made.name for made in registry.declared()}

    ends = pushed["headrace_engine_ends_total"].sum
    assert ends.is_monotonic
    assert {p.attributes[0].value.string_value: p.as_double for p in ends.data_points} == {
        "stop": 3,
        "length": 1,
    }
    assert pushed["headrace_engine_free_blocks"].gauge.data_points[0].as_double == 17
    assert pushed["headrace_engine_passes_total"].sum.data_points[0].as_double == 9

    steps = pushed["headrace_engine_step_seconds"]
    assert steps.unit == "seconds"
    point = steps.histogram.data_points[0]
    assert list(point.explicit_bounds) == [0.1, 1.0]
    assert list(point.bucket_counts) == [1, 2, 1]
    assert (point.count, point.sum) == (4, pytest.approx(8.05))
    assert not point.HasField("min")
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano


def test_close_pushes_the_last_values() -> None:
    registry = filled()
    with otlp_receiver() as receiver:
        registry.start_otlp(receiver.endpoint, interval_s=3600)
        registry.close()
        assert len(receiver.metrics) == 1
    registry.close()


def test_absent_receiver_neither_raises_nor_holds_up_the_end() -> None:
    registry = filled()
    registry.start_otlp("http://127.0.0.1:9", interval_s=3600)
    registry.close()


def test_second_start_is_refused() -> None:
    registry = filled()
    with otlp_receiver() as receiver:
        registry.start_otlp(receiver.endpoint, interval_s=3600)
        with pytest.raises(RuntimeError, match="already on"):
            registry.start_otlp(receiver.endpoint)
        registry.close()


def test_a_histogram_is_pushed_under_its_further_name_too() -> None:
    registry = Registry(service="gateway")
    name = OtlpName("gen_ai.server.x", "s", {"model": "gen_ai.request.model"}, {"fixed": "yes"})
    wait = registry.histogram(
        "headrace_gateway_x_seconds", "Waits.", buckets=(1.0,), labels=("model",), otlp=name
    )
    wait.labels("m").observe(0.5)
    with otlp_receiver() as receiver:
        registry.start_otlp(receiver.endpoint, interval_s=60)
        registry.close()
        pushed = receiver.newest_metrics()
    assert set(pushed) == {"headrace_gateway_x_seconds", "gen_ai.server.x"}
    assert (pushed["gen_ai.server.x"].unit, pushed["headrace_gateway_x_seconds"].unit) == (
        "s",
        "seconds",
    )
    [point] = pushed["gen_ai.server.x"].histogram.data_points
    assert {a.key: a.value.string_value for a in point.attributes} == {
        "gen_ai.request.model": "m",
        "fixed": "yes",
    }
    assert list(point.bucket_counts) == [1, 0]
    assert b"gen_ai" not in registry.exposition()
