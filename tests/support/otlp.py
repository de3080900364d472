"""A real OTLP/gRPC receiver on a free loopback port, for what the services push."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2,
    metrics_service_pb2_grpc,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


class OtlpReceiver(
    metrics_service_pb2_grpc.MetricsServiceServicer, trace_service_pb2_grpc.TraceServiceServicer
):
    """Keeps what arrives."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.metrics: list[metrics_pb2.ResourceMetrics] = []
        self.spans: list[trace_pb2.ResourceSpans] = []
        self._arrived = threading.Condition()

    def newest_metrics(self) -> dict[str, metrics_pb2.Metric]:
        """The last push, by metric name."""
        last = self.metrics[-1]
        return {metric.name: metric for scope in last.scope_metrics for metric in scope.metrics}

    def all_spans(self) -> list[trace_pb2.Span]:
        """Every span that arrived."""
        return [span for part in self.spans for scope in part.scope_spans for span in scope.spans]

    def wait_for_spans(self, *names: str, timeout_s: float = 40.0) -> list[trace_pb2.Span]:
        """Every span, once there is one of each name; fails the test when they do not come."""
        with self._arrived:
            found = self._arrived.wait_for(
                lambda: {span.name for span in self.all_spans()} >= set(names), timeout_s
            )
            assert found, sorted(span.name for span in self.all_spans())
            return self.all_spans()

    def wait_for_pushes(self, count: int) -> None:
        """Returns after ``count`` pushes of metrics in all; fails the test when they do not come."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.metrics) >= count, 40.0)

    def Export(self, request, context):  # pyright: ignore[reportMissingParameterType,reportUnknownParameterType,reportIncompatibleMethodOverride]
        """One push of either kind."""
        with self._arrived:
            if isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest):
                self.metrics.extend(request.resource_metrics)
                self._arrived.notify_all()
                return metrics_service_pb2.ExportMetricsServiceResponse()
            assert isinstance(request, trace_service_pb2.ExportTraceServiceRequest)
            self.spans.extend(request.resource_spans)
            self._arrived.notify_all()
            return trace_service_pb2.ExportTraceServiceResponse()


@contextmanager
def otlp_receiver() -> Generator[OtlpReceiver]:
    """A started receiver; its ``endpoint`` is what a service is configured with."""
    receiver = OtlpReceiver()
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(receiver, server)  # pyright: ignore[reportUnknownMemberType]
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # pyright: ignore[reportUnknownMemberType]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    receiver.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        server.stop(grace=0.2).wait()


def attributes(span: trace_pb2.Span) -> dict[str, Any]:
    """Of a span, by name; an array is a list of strings."""
    read: dict[str, Any] = {}
    for item in span.attributes:
        kind = item.value.WhichOneof("value")
        assert kind is not None
        read[item.key] = (
            [each.string_value for each in item.value.array_value.values]
            if kind == "array_value"
            else getattr(item.value, kind)
        )
    return read
