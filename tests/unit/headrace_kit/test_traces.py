"""Spans arrive at a real receiver with their parents, and cost nothing when tracing is off."""

from __future__ import annotations

import sys

import pytest
from headrace_kit.traces import Tracing
from support.otlp import otlp_receiver

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_an_endpoint_the_callers_trace_is_handed_on() -> None:
    tracing = Tracing.start("gateway")
    with tracing.span("request", {"tokens": 3}, parent=PARENT) as span:
        span.set("more", 1)
        assert span.traceparent == PARENT
    with tracing.span("request") as span:
        assert span.traceparent is None
    tracing.close()


def test_spans_arrive_below_their_parents_with_attributes() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint, version="1.2.3")
        with tracing.span("request", {"tokens": 3}, parent=PARENT) as outer:
            outer.set("model", "m")
            handed_on = outer.traceparent
            with tracing.span("tokenize"):
                pass
        with tracing.span("publish", parent=handed_on):
            pass
        tracing.close()
        spans = {span.name: span for span in receiver.all_spans()}
    request = spans["request"]
    assert request.trace_id.hex() == PARENT.split("-")[1]
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    assert {a.key for a in request.attributes} == {"tokens", "model"}
    assert spans["tokenize"].parent_span_id == request.span_id
    assert spans["publish"].parent_span_id == request.span_id
    assert spans["publish"].trace_id == request.trace_id


def test_exception_that_leaves_a_span_marks_it_failed() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        with pytest.raises(ZeroDivisionError), tracing.span("request"):
            raise ZeroDivisionError
        tracing.close()
        (span,) = receiver.all_spans()
    assert span.status.code == span.status.STATUS_CODE_ERROR


def test_malformed_parent_starts_a_new_trace() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        with tracing.span("request", parent="garbage") as span:
            assert span.traceparent is not None
        tracing.close()
        assert len(receiver.all_spans()) == 1


def test_global_tracer_provider_stays_untouched() -> None:
    with otlp_receiver() as receiver:
        Tracing.start("gateway", receiver.endpoint).close()
    from opentelemetry import trace

    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
    assert "headrace_kit.traces" in sys.modules
