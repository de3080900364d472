"""Traces: spans to an OTLP receiver, or nothing at all when none is configured."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

Value = str | bool | int | float


class Span(Protocol):
    """One piece of work that takes time."""

    @property
    def traceparent(self) -> str | None:
        """W3C ``traceparent`` to hand on, so that what follows hangs below this span."""
        ...

    def set(self, name: str, value: Value) -> None:
        """Adds an attribute."""
        ...


class Tracing:
    """The traces of one process. Without an endpoint every span is a no-op."""

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider

    @classmethod
    def start(cls, service: str, endpoint: str | None = None, version: str = "") -> Tracing:
        """Begins to export to ``endpoint`` (OTLP/gRPC), or does nothing where it is None."""
        if not endpoint:
            return cls(None)
        # Only those who export pay for the SDK's import.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource({"service.name": f"headrace-{service}", "service.version": version})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(
            endpoint=endpoint, insecure=not endpoint.startswith("https://"), timeout=5
        )
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    @contextmanager
    def span(
        self,
        name: str,
        attributes: Mapping[str, Value] | None = None,
        parent: str | None = None,
    ) -> Generator[Span]:
        """A span around the block; ``parent`` is a ``traceparent`` from the wire.

        An exception that leaves the block marks the span as failed.
        """
        if self._provider is None:
            yield _NoSpan(parent)
            return
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {"traceparent": parent} if parent else {}
        context = TraceContextTextMapPropagator().extract(carrier) if parent else None
        tracer = self._provider.get_tracer("headrace")
        with tracer.start_as_current_span(
            name, context=context, attributes=dict(attributes or {})
        ) as span:
            yield _LiveSpan(span)

    def close(self) -> None:
        """Sends what is left, within the exporter's time-out."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None


class _NoSpan:
    """Records nothing, and hands the caller's trace on."""

    __slots__ = ("traceparent",)

    def __init__(self, parent: str | None) -> None:
        self.traceparent = parent

    def set(self, name: str, value: Value) -> None:
        """Records nothing."""


class _LiveSpan:
    """A recorded span."""

    __slots__ = ("_span",)

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        found = self._span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)
