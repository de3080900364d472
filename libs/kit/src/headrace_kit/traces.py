"""Traces: spans to an OTLP receiver, or nothing at all when none is configured.

What one process hands to the next is a W3C ``traceparent``. It is handed on where this process
records nothing, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import SpanContext, Tracer

Value = str | bool | int | float | Sequence[str]
Kind = Literal["server", "consumer", "internal"]
"""Answers a caller; works off what came through a queue; a part of either."""

EXPORT_EVERY_S: Final = 1.0
EXPORT_TIMEOUT_S: Final = 5.0
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_INVALID: Final = re.compile(r"ff-.*|..-0{32}-.*|.{36}0{16}-..")


class Span(Protocol):
    """One piece of work that takes time. Belongs to one thread."""

    @property
    def traceparent(self) -> str:
        """What follows hangs below this span with it; "" where there is no trace."""
        ...

    @property
    def trace_id(self) -> str | None:
        """For log lines."""
        ...

    @property
    def recording(self) -> bool:
        """Whether anybody will see what is told here; where not, nothing need be told."""
        ...

    def rename(self, name: str) -> None:
        """Gives the name that was not known at the beginning."""
        ...

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds attributes."""
        ...

    def link(self, traceparent: str) -> None:
        """Points at a span of another trace, or of another attempt."""
        ...

    def fail(self, kind: str, message: str = "") -> None:
        """Marks the work as failed; ``kind`` is one of few words: an error code, a type's name."""
        ...

    def end(self, at_ns: int | None = None) -> None:
        """Ends it, now or at a Unix time. What is told afterwards is lost."""
        ...


def valid_traceparent(given: str) -> str:
    """``given`` where it is a W3C trace context, else ""."""
    if _TRACEPARENT.fullmatch(given) is None or _INVALID.fullmatch(given) is not None:
        return ""
    return given


def trace_id_of(traceparent: str) -> str | None:
    """The trace that a ``traceparent`` belongs to."""
    return traceparent[3:35] if valid_traceparent(traceparent) else None


def traceparent_of(trace_id: str, span_id: int, *, sampled: bool = True) -> str:
    """A ``traceparent`` from its parts; ``trace_id`` in hex."""
    return f"00-{trace_id}-{span_id:016x}-{int(sampled):02x}"


class NoSpan:
    """Records nothing, and hands the caller's trace on."""

    __slots__ = ("traceparent",)

    def __init__(self, parent: str = "") -> None:
        self.traceparent = valid_traceparent(parent)

    @property
    def trace_id(self) -> str | None:
        """The caller's."""
        return trace_id_of(self.traceparent)

    @property
    def recording(self) -> bool:
        """Never."""
        return False

    def rename(self, name: str) -> None:
        """Nothing."""

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Nothing."""

    def link(self, traceparent: str) -> None:
        """Nothing."""

    def fail(self, kind: str, message: str = "") -> None:
        """Nothing."""

    def end(self, at_ns: int | None = None) -> None:
        """Nothing."""


NO_SPAN: Final = NoSpan()


class Tracing:
    """The traces of one process. Without an endpoint every span is a ``NoSpan``."""

    def __init__(self, provider: TracerProvider | None = None, ids: _Ids | None = None) -> None:
        """``start`` makes one that exports."""
        self._provider = provider
        self._ids = ids
        self._tracer: Tracer | None = None
        if provider is not None:
            self._tracer = provider.get_tracer("headrace")

    @classmethod
    def start(
        cls,
        service: str,
        endpoint: str | None,
        *,
        ratio: float = 1.0,
        instance: str = "",
        version: str = "",
    ) -> Tracing:
        """Begins to export to ``endpoint`` (OTLP/gRPC); does nothing where it is None or
        ``ratio`` is 0.

        A caller's own decision to record a trace or not is followed; ``ratio`` of the traces that
        begin here are recorded. ``instance`` is this process's id.
        """
        if not endpoint or not ratio:
            return cls()
        # Only those who export pay for the SDK's import.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        ids = _Ids()
        who = {
            "service.name": f"headrace-{service}",
            "service.version": version,
            "service.instance.id": instance,
        }
        provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)),
            resource=Resource({name: value for name, value in who.items() if value}),
            shutdown_on_exit=False,
            id_generator=ids.generator(),
        )
        exporter = OTLPSpanExporter(
            endpoint=endpoint,
            insecure=not endpoint.startswith("https://"),
            timeout=EXPORT_TIMEOUT_S,
        )
        provider.add_span_processor(
            BatchSpanProcessor(exporter, schedule_delay_millis=EXPORT_EVERY_S * 1000)
        )
        return cls(provider, ids)

    @property
    def on(self) -> bool:
        """Whether anything is recorded at all."""
        return self._tracer is not None

    def begin(
        self,
        name: str,
        *,
        kind: Kind = "internal",
        parent: str = "",
        attributes: Mapping[str, Value] | None = None,
        start_ns: int | None = None,
        span_id: int | None = None,
    ) -> Span:
        """A span that began at the Unix time ``start_ns`` (now, where None), below ``parent``.

        ``parent`` is a ``traceparent``; one that is none begins a new trace. ``span_id`` is
        given where somebody else must be able to name the span.
        """
        if self._tracer is None:
            return NoSpan(parent)
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanKind, set_span_in_context

        context = Context()
        above = _context_of(parent)
        if above is not None:
            context = set_span_in_context(NonRecordingSpan(above), context)
        assert self._ids is not None
        self._ids.next = span_id
        try:
            span = self._tracer.start_span(
                name,
                context=context,
                kind=SpanKind[kind.upper()],
                attributes=dict(attributes or {}),
                start_time=start_ns,
            )
        finally:
            self._ids.next = None
        return _LiveSpan(span)

    def close(self) -> None:
        """Sends what is left, within the exporter's time-out."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider, self._tracer = None, None


class _LiveSpan:
    """A span of the SDK; it may still be one that its sampler does not record."""

    __slots__ = ("_span",)

    def __init__(self, span: OtelSpan) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        found = self._span.get_span_context()
        return traceparent_of(
            f"{found.trace_id:032x}", found.span_id, sampled=found.trace_flags.sampled
        )

    @property
    def trace_id(self) -> str | None:
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def rename(self, name: str) -> None:
        if self.recording:
            self._span.update_name(name)

    def set(self, attributes: Mapping[str, Value]) -> None:
        if self.recording:
            self._span.set_attributes(dict(attributes))

    def link(self, traceparent: str) -> None:
        other = _context_of(traceparent)
        if other is not None and self.recording:
            self._span.add_link(other)

    def fail(self, kind: str, message: str = "") -> None:
        if self.recording:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR, message or None))

    def end(self, at_ns: int | None = None) -> None:
        if self.recording:
            self._span.end(at_ns)


class _Ids:
    """Ids of spans: random, but for the one that is asked for next."""

    def __init__(self) -> None:
        self.next: int | None = None

    def generator(self) -> IdGenerator:
        """What the SDK asks."""
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        asked = self

        class Chosen(RandomIdGenerator):
            def generate_span_id(self) -> int:
                return super().generate_span_id() if asked.next is None else asked.next

        return Chosen()


def _context_of(traceparent: str) -> SpanContext | None:
    if not valid_traceparent(traceparent):
        return None
    from opentelemetry.trace import SpanContext, TraceFlags

    _version, trace_id, span_id, flags = traceparent.split("-")
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
