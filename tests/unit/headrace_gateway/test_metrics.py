"""The gateway's series: present, bounded, and with buckets for fast and slow."""

from __future__ import annotations

from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Registry
from headrace_kit.otlp import metrics_data


def test_latency_buckets_reach_from_10_ms_to_10_minutes() -> None:
    registry = Registry("gateway")
    GatewayMetrics(registry)
    for declared in registry.declared():
        if declared.name in (
            "headrace_gateway_request_seconds",
            "headrace_gateway_time_to_first_token_seconds",
        ):
            assert declared.buckets[0] <= 0.01
            assert declared.buckets[-1] >= 600


def test_gauges_read_the_truth_whenever_somebody_looks() -> None:
    registry = Registry("gateway")
    metrics = GatewayMetrics(registry)
    assert b"headrace_gateway_requests_open 0.0" in registry.exposition()
    metrics.open_requests = lambda: 3
    metrics.open_streams = lambda: 2
    assert b"headrace_gateway_requests_open 3.0" in registry.exposition()
    assert b"headrace_gateway_streams_open 2.0" in registry.exposition()


def test_every_series_says_what_it_means() -> None:
    registry = Registry("gateway")
    GatewayMetrics(registry)
    for declared in registry.declared():
        assert declared.name.startswith("headrace_gateway_")
        assert declared.help.endswith(".")


def test_times_have_the_names_of_the_conventions_over_otlp() -> None:
    registry = Registry("gateway")
    GatewayMetrics(registry)
    names = {made.name: made.otlp.name for made in registry.declared() if made.otlp is not None}
    assert names == {
        "headrace_gateway_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
        "headrace_gateway_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
        "headrace_gateway_request_seconds": "gen_ai.server.request.duration",
    }


def test_times_of_chats_and_of_completions_are_told_apart_over_otlp() -> None:
    registry = Registry("gateway")
    metrics = GatewayMetrics(registry)
    metrics.request_time.labels("m", "chat").observe(1)
    metrics.request_time.labels("m", "text_completion").observe(2)
    pushed = {
        metric.name: metric
        for resource in metrics_data(registry, 0).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    points = pushed["gen_ai.server.request.duration"].data.data_points
    assert [dict(point.attributes or {}) for point in points] == [
        {
            "gen_ai.provider.name": "headrace",
            "gen_ai.request.model": "m",
            "gen_ai.operation.name": operation,
        }
        for operation in ("chat", "text_completion")
    ]
