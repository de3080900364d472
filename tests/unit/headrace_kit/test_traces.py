"""Spans arrive at a real receiver with their parents, and cost nothing when tracing is off."""

from __future__ import annotations

import subprocess
import sys

import pytest
from headrace_kit.traces import NO_SPAN, NoSpan, Tracing, trace_id_of, valid_traceparent
from opentelemetry.proto.trace.v1 import trace_pb2
from support.otlp import otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"


@pytest.mark.parametrize("tracing", [Tracing(), Tracing.start("gateway", None)])
def test_without_an_endpoint_the_callers_trace_is_handed_on(tracing: Tracing) -> None:
    span = tracing.begin("request", parent=PARENT, attributes={"tokens": 3})
    assert (span.traceparent, span.trace_id, span.recording) == (PARENT, TRACE, False)
    span.set({"more": 1})
    span.fail("error")
    span.end()
    assert tracing.begin("request", parent="garbage").traceparent == ""
    assert NO_SPAN.trace_id is None
    assert not tracing.on
    tracing.close()


def test_a_ratio_of_nothing_is_off() -> None:
    assert not Tracing.start("gateway", "http://127.0.0.1:9", ratio=0).on


def test_without_an_endpoint_the_sdk_is_not_imported() -> None:
    code = (
        "import sys; from headrace_kit.traces import Tracing; "
        "Tracing.start('gateway', None).begin('x').end(); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "garbage",
        PARENT.upper(),
        PARENT + "-more",
        PARENT.replace("00-", "ff-", 1),
        PARENT.replace(TRACE, "0" * 32),
        PARENT.replace("b7ad6b7169203331", "0" * 16),
    ],
)
def test_what_is_no_trace_context_goes_no_further(given: str) -> None:
    assert valid_traceparent(given) == NoSpan(given).traceparent == ""
    assert trace_id_of(given) is None


def test_spans_arrive_below_their_parents_with_attributes() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint, version="1.2.3")
        outer = tracing.begin("?", kind="server", parent=PARENT, attributes={"tokens": 3})
        assert outer.recording
        outer.rename("request")
        outer.set({"model": "m", "reasons": ["stop", "length"]})
        inner = tracing.begin(
            "publish", kind="consumer", parent=outer.traceparent, start_ns=1_000, span_id=77
        )
        inner.link(PARENT)
        inner.link("garbage")
        inner.end(5_000)
        outer.end()
        tracing.close()
        spans = {span.name: span for span in receiver.all_spans()}
        resource = {a.key: a.value.string_value for a in receiver.spans[0].resource.attributes}
    request, publish = spans["request"], spans["publish"]
    assert request.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    assert request.kind == trace_pb2.Span.SPAN_KIND_SERVER
    attributes = {a.key: a.value for a in request.attributes}
    assert set(attributes) == {"tokens", "model", "reasons"}
    assert [v.string_value for v in attributes["reasons"].array_value.values] == ["stop", "length"]
    assert (publish.trace_id, publish.parent_span_id) == (request.trace_id, request.span_id)
    assert (publish.start_time_unix_nano, publish.end_time_unix_nano) == (1_000, 5_000)
    assert int.from_bytes(publish.span_id) == 77
    assert [link.span_id.hex() for link in publish.links] == [PARENT.split("-")[2]]
    assert request.span_id != publish.span_id
    assert resource["service.name"] == "headrace-gateway"
    assert resource["service.version"] == "1.2.3"


def test_a_failed_span_says_so() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        span = tracing.begin("request")
        span.fail("engine_failed", "It broke.")
        span.end()
        span.set({"late": True})  # after the end: lost, and no complaint
        tracing.close()
        (found,) = receiver.all_spans()
    assert found.status.code == found.status.STATUS_CODE_ERROR
    assert found.status.message == "It broke."
    assert {a.key: a.value.string_value for a in found.attributes} == {
        "error.type": "engine_failed"
    }


def test_malformed_parent_begins_a_new_trace() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        span = tracing.begin("request", parent="garbage")
        assert valid_traceparent(span.traceparent)
        span.end()
        tracing.close()
        (found,) = receiver.all_spans()
    assert found.parent_span_id == b""


def test_a_callers_decision_not_to_record_is_followed() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint)
        span = tracing.begin("request", parent=UNSAMPLED)
        assert not span.recording
        assert (span.trace_id, span.traceparent[-2:]) == (TRACE, "00")
        span.end()
        tracing.close()
        assert receiver.all_spans() == []


def test_a_ratio_records_some_of_the_traces_that_begin_here_and_all_of_a_callers() -> None:
    with otlp_receiver() as receiver:
        tracing = Tracing.start("gateway", receiver.endpoint, ratio=1e-9)
        own = tracing.begin("own")
        asked = tracing.begin("asked", parent=PARENT)
        assert (own.recording, asked.recording) == (False, True)
        assert own.trace_id is not None
        for span in (own, asked):
            span.end()
        tracing.close()
        assert [span.name for span in receiver.all_spans()] == ["asked"]


def test_global_tracer_provider_stays_untouched() -> None:
    with otlp_receiver() as receiver:
        Tracing.start("gateway", receiver.endpoint).close()
    from opentelemetry import trace

    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
