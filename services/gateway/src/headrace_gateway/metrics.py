"""The gateway's metrics: declared here, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headrace_kit.metrics import OtlpName, Registry
from headrace_transport.damaged import DamagedKind
from headrace_transport.foreign import Kind

REQUEST_BUCKETS: Final = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 1200.0),
)
"""Seconds; from a cached first token to a long answer behind a long queue."""
TOKEN_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Seconds between two tokens of one choice."""


class GatewayMetrics:
    """Every series of one gateway process.

    An accepted request is counted in ``started`` once, in ``finished`` once, and in between in
    the gauge ``open``: ``started = sum(finished) + open``. Tokens of cancelled requests count
    like those of the others. ``operation`` is ``chat`` or ``text_completion``.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.open_requests: Callable[[], int] = _none
        """Read whenever somebody looks, so that the gauge can never drift; the service sets it."""
        self.open_streams: Callable[[], int] = _none
        self.foreign_records: Callable[[], Mapping[Kind, int]] = dict[Kind, int]
        """Likewise; the wire counts them."""
        self.damaged_records: Callable[[], Mapping[DamagedKind, int]] = dict[DamagedKind, int]
        self.http_requests = registry.counter(
            "headrace_gateway_http_requests_total",
            "Answered HTTP requests by route template and status.",
            labels=("route", "status"),
        )
        self.grpc_requests = registry.counter(
            "headrace_gateway_grpc_requests_total",
            "Answered gRPC calls by method and status; method unmatched: refused at the door.",
            labels=("method", "status"),
        )
        self.started = registry.counter(
            "headrace_gateway_requests_started_total",
            "Calls that were admitted and queued.",
            labels=("model",),
        )
        self.finished = registry.counter(
            "headrace_gateway_requests_finished_total",
            "Admitted calls that ended, by reason: stop, length, cancelled, deadline, error, "
            "moved (taken up at another gateway).",
            labels=("model", "reason"),
        )
        self.rejected = registry.counter(
            "headrace_gateway_requests_rejected_total",
            "Calls that were refused before they were queued, by error code.",
            labels=("code",),
        )
        self.prompt_tokens = registry.counter(
            "headrace_gateway_prompt_tokens_total",
            "Prompt tokens of admitted calls, counted when they end.",
            labels=("model",),
        )
        self.completion_tokens = registry.counter(
            "headrace_gateway_completion_tokens_total",
            "Tokens generated for admitted calls, counted when they end.",
            labels=("model",),
        )
        self.cached_tokens = registry.counter(
            "headrace_gateway_cached_tokens_total",
            "Prompt tokens that an engine found in its cache, counted when the call ends.",
            labels=("model",),
        )
        self.first_token = registry.histogram(
            "headrace_gateway_time_to_first_token_seconds",
            "From the arrival of a call to its first token.",
            buckets=REQUEST_BUCKETS,
            labels=("model", "operation"),
            otlp=_gen_ai("time_to_first_token"),
        )
        self.token_gap = registry.histogram(
            "headrace_gateway_time_per_output_token_seconds",
            "Mean time between a choice's tokens after the first, one observation per choice.",
            buckets=TOKEN_BUCKETS,
            labels=("model", "operation"),
            otlp=_gen_ai("time_per_output_token"),
        )
        self.request_time = registry.histogram(
            "headrace_gateway_request_seconds",
            "From the arrival of a call to its end.",
            buckets=REQUEST_BUCKETS,
            labels=("model", "operation"),
            otlp=_gen_ai("request.duration"),
        )
        self.cancels = registry.counter(
            "headrace_gateway_cancels_total",
            "Cancels sent to the engines, by cause: disconnect, request, stop_string, deadline, "
            "drain, failure.",
            labels=("cause",),
        )
        self.resumes = registry.counter(
            "headrace_gateway_resumes_total",
            "Streams that were taken up again, by where their tokens came from: here, log, engine.",
            labels=("source",),
        )
        self.recoveries = registry.counter(
            "headrace_gateway_recoveries_total",
            "Running requests that had to be mended: gap (frames were missing), resubmitted (the "
            "server had lost the request), failed.",
            labels=("kind",),
        )
        self.frames = registry.counter(
            "headrace_gateway_frames_total", "Result frames read from this process's stream."
        )
        self.stale_rows = registry.counter(
            "headrace_gateway_stale_rows_total",
            "Rows dropped: of a fenced attempt, a duplicate, or of a request that had ended here.",
            labels=("kind",),
        )
        self.frame_lag = registry.gauge(
            "headrace_gateway_frame_lag_seconds",
            "Age of the last result frame when it was read, by the clocks of both machines.",
            unit="seconds",
        )
        self.queue_depth = registry.gauge(
            "headrace_gateway_queue_depth",
            "Requests of a model that wait for an engine, on the server: every gateway tells the "
            "same number. Absent while the server cannot be read.",
            labels=("model",),
        )
        self.engines_ready = registry.gauge(
            "headrace_gateway_engines_ready",
            "Engines that serve a model, as this gateway sees them.",
            labels=("model",),
        )
        self.backend_up = registry.gauge(
            "headrace_gateway_backend_up", "1 while the Redis server answers, else 0."
        )
        registry.callback(
            "headrace_gateway_requests_open",
            "Admitted calls that have not ended.",
            "gauge",
            lambda: self.open_requests(),
        )
        registry.callback(
            "headrace_gateway_streams_open",
            "Readers of admitted calls: clients that are connected.",
            "gauge",
            lambda: self.open_streams(),
        )
        registry.callback(
            "headrace_gateway_foreign_records_total",
            "Records of another wire version that were read and refused, by kind: card, fence, "
            "frame, log.",
            "counter",
            lambda: [((kind,), count) for kind, count in self.foreign_records().items()],
            labels=("kind",),
        )
        registry.callback(
            "headrace_gateway_damaged_records_total",
            "Records that could not be read, each time that they were met, by kind: card, engine, "
            "fence, frame, key, log, request; replaced: keys of another type that were emptied. The "
            "log names each once.",
            "counter",
            lambda: [((kind,), count) for kind, count in self.damaged_records().items()],
            labels=("kind",),
        )


def _gen_ai(what: str) -> OtlpName:
    """The name of OpenTelemetry's conventions for a server of generative models."""
    return OtlpName(
        f"gen_ai.server.{what}",
        unit="s",
        labels={"model": "gen_ai.request.model", "operation": "gen_ai.operation.name"},
        attributes={"gen_ai.provider.name": "headrace"},
    )


def _none() -> int:
    return 0
