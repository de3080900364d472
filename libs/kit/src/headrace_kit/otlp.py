"""Pushes a registry's values over OTLP/gRPC, converted from what Prometheus would read.

Nothing is sent unless an endpoint is configured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

if TYPE_CHECKING:
    from headrace_kit.metrics import OtlpName, Registry

EXPORT_TIMEOUT_S = 5.0


class Push:
    """A thread that pushes every ``interval_s``, and once more at ``close``.

    A receiver that is away costs one log line of the exporter a push; values are cumulative, so
    nothing is lost but resolution.
    """

    def __init__(self, registry: Registry, endpoint: str, interval_s: float) -> None:
        self._registry = registry
        self._exporter = OTLPMetricExporter(
            endpoint=endpoint,
            insecure=not endpoint.startswith("https://"),
            timeout=EXPORT_TIMEOUT_S,
        )
        self._interval_s = interval_s
        self._started_ns = time.time_ns()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sends the last values and ends the thread; waits at most two export time-outs."""
        self._stopped.set()
        self._thread.join(timeout=2 * EXPORT_TIMEOUT_S)
        self._exporter.shutdown(timeout_millis=1000)  # pyright: ignore[reportUnknownMemberType]

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        self._exporter.export(  # pyright: ignore[reportUnknownMemberType]
            metrics_data(self._registry, self._started_ns),
            timeout_millis=EXPORT_TIMEOUT_S * 1000,
        )


def metrics_data(registry: Registry, started_ns: int) -> MetricsData:
    """Everything ``registry`` holds now, as cumulative OTLP values since ``started_ns``."""
    now_ns = time.time_ns()
    declared = {made.name: made for made in registry.declared()}
    metrics: list[Metric] = []
    for family in registry.families():
        made = declared[_full_name(family)]
        metrics.append(_metric(family, made.unit or "", started_ns, now_ns))
        if made.otlp is not None:
            metrics.append(_renamed(family, made.otlp, started_ns, now_ns))
    resource = Resource(
        {
            "service.name": f"headrace-{registry.service}",
            "service.version": registry.version,
        }
    )
    scope = InstrumentationScope("headrace_kit.metrics")
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _full_name(family: Family) -> str:
    """The declared name: ``prometheus_client`` keeps a counter's without its ending."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _metric(family: Family, unit: str, started_ns: int, now_ns: int) -> Metric:
    name, cumulative = _full_name(family), AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = _histogram_points(family, started_ns, now_ns)
        return Metric(name, family.documentation, unit, Histogram(points, cumulative))
    numbers = [
        NumberDataPoint(_attributes(s.labels), started_ns, now_ns, s.value) for s in family.samples
    ]
    if family.type == "counter":
        data = Sum(numbers, cumulative, is_monotonic=True)
        return Metric(name, family.documentation, unit, data)
    return Metric(name, family.documentation, unit, Gauge(numbers))


def _renamed(family: Family, other: OtlpName, started_ns: int, now_ns: int) -> Metric:
    """A histogram under its further name, with that convention's attributes."""

    def attributes(labels: Mapping[str, str]) -> dict[str, str]:
        named = {other.labels.get(label, label): value for label, value in labels.items()}
        return {**other.attributes, **named}

    points = _histogram_points(family, started_ns, now_ns, attributes)
    data = Histogram(points, AggregationTemporality.CUMULATIVE)
    return Metric(other.name, family.documentation, other.unit, data)


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    return dict(labels)


def _histogram_points(
    family: Family,
    started_ns: int,
    now_ns: int,
    attributes: Callable[[Mapping[str, str]], dict[str, str]] = _attributes,
) -> list[HistogramDataPoint]:
    """One point a series. Prometheus counts up to each bound; OTLP counts between bounds."""
    grouped: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != "le"}
        grouped.setdefault(tuple(sorted(labels.items())), []).append(sample)
    points: list[HistogramDataPoint] = []
    for labels, samples in grouped.items():
        buckets = sorted(
            (float(s.labels["le"]), int(s.value)) for s in samples if s.name.endswith("_bucket")
        )
        totals = [0, *(count for _, count in buckets)]
        points.append(
            HistogramDataPoint(
                attributes=attributes(dict(labels)),
                start_time_unix_nano=started_ns,
                time_unix_nano=now_ns,
                count=totals[-1],
                sum=next(s.value for s in samples if s.name.endswith("_sum")),
                bucket_counts=[after - before for before, after in pairwise(totals)],
                explicit_bounds=[bound for bound, _ in buckets[:-1]],
                min=cast(float, None),  # not known here, and optional on the wire
                max=cast(float, None),
            )
        )
    return points
