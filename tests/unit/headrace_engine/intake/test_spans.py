"""What the traces tell of a request: its parts in time, its end, the attempt before it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import RowFinish
from headrace_engine.intake.held import Held
from headrace_engine.intake.publisher_frames import row_finish
from headrace_engine.intake.spans import Spans, attempt_span_id
from headrace_engine.metrics import LetGo
from headrace_engine.state.outputs import RowEnd, SequenceUsage
from headrace_kit.traces import Tracing
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.clock import FakeClock
from support.held import make_held
from support.otlp import OtlpReceiver, attributes, otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NS = 1_000_000_000


class SpanBench:
    """Spans that go to a receiver."""

    def __init__(self, receiver: OtlpReceiver) -> None:
        self.clock = FakeClock()
        self.tracing = Tracing.start("engine", receiver.endpoint, instance="e-1")
        self.spans = Spans(self.tracing, self.clock)
        self._receiver = receiver

    def held(self, *, n: int = 1, attempt: int = 1, parent: str = PARENT) -> Held:
        """A request that was claimed now, 0.25 s after it was queued."""
        held = make_held(n=n, attempt=attempt)
        held.record.traceparent = parent
        held.record.submitted_ms = self.clock.wall_ms() - 250
        held.claimed_s = self.clock.monotonic()
        return held

    def end(self, held: Held, choice: int = 0, **how: Any) -> None:
        """One choice ends."""
        usage = SequenceUsage(5, 7, 2, 0.5, 1.0, 2.0, 1, {"batch_rows": 0.5})
        how = {"reason": FinishReason.STOP, "usage": usage, **how}
        held.ends[choice] = row_finish(RowEnd(0, **how), choice)
        held.usages[choice] = how["usage"]

    def told(self) -> list[Span]:
        """Everything that arrived."""
        self.tracing.close()
        return self._receiver.all_spans()


@contextmanager
def bench() -> Generator[SpanBench]:
    """Started and stopped."""
    with otlp_receiver() as receiver:
        yield SpanBench(receiver)


def test_parts_follow_each_other_from_the_claim_and_lie_below_the_process() -> None:
    with bench() as b:
        held = b.held()
        start_ns = b.clock.wall_ms() * 1_000_000
        b.clock.advance(4.0)
        b.end(held)
        b.spans.settled(held, ours=True)
        spans = {span.name: span for span in b.told()}
    process = spans["process"]
    assert (process.trace_id.hex(), process.parent_span_id.hex()) == (TRACE, PARENT.split("-")[2])
    assert process.kind == Span.SPAN_KIND_CONSUMER
    times = {
        name: (
            round((span.start_time_unix_nano - start_ns) / NS, 4),
            round((span.end_time_unix_nano - start_ns) / NS, 4),
        )
        for name, span in spans.items()
    }
    assert times == {
        "process": (0.0, 4.0),
        "queue": (0.0, 0.5),
        "prefill": (0.5, 1.5),
        "decode": (1.5, 3.5),
    }
    for name in ("queue", "prefill", "decode"):
        assert spans[name].parent_span_id == process.span_id
        assert spans[name].trace_id == process.trace_id
    assert attributes(process) == {
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "r1",
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.response.finish_reasons": ["stop"],
        "headrace.attempt": 1,
        "headrace.preemptions": 1,
        "headrace.wire_queue_s": 0.25,
    }
    assert attributes(spans["queue"]) == {"headrace.choice": 0, "headrace.wait.batch_rows_s": 0.5}
    assert attributes(spans["decode"])["gen_ai.usage.output_tokens"] == 7
    assert process.status.code == process.status.STATUS_CODE_UNSET
    assert not process.links


def test_what_never_ran_has_no_parts_and_says_why() -> None:
    with bench() as b:
        held = b.held()
        refused = SequenceUsage(5, 0, 0, 0.0, 0.0, 0.0, 0)
        b.end(
            held,
            reason=FinishReason.ERROR,
            usage=refused,
            code=Code.CONTEXT_LENGTH_EXCEEDED,
            message="too long",
        )
        b.spans.settled(held, ours=True)
        [process] = b.told()
    assert process.status.code == process.status.STATUS_CODE_ERROR
    assert process.status.message == "too long"
    assert attributes(process)["error.type"] == "context_length_exceeded"


def test_a_cancel_is_no_failure() -> None:
    with bench() as b:
        held = b.held()
        b.end(held, reason=FinishReason.CANCELLED, code=Code.CANCELLED)
        b.spans.settled(held, ours=True)
        process = b.told()[-1]
    assert process.name == "process"
    assert process.status.code == process.status.STATUS_CODE_UNSET
    assert attributes(process)["gen_ai.response.finish_reasons"] == ["cancelled"]


def test_a_successor_points_at_the_attempt_before_and_leaves_out_what_that_one_ended() -> None:
    with bench() as b:
        first = b.held(n=2)
        b.end(first, choice=1)
        b.spans.let_go(first, "lost")
        second = b.held(n=2, attempt=2)
        second.ends[1] = RowFinish(row=1, reason="FINISH_REASON_STOP")
        second.usages[1] = first.usages[1]
        second.ended_before = frozenset({1})
        b.end(second, choice=0)
        b.spans.settled(second, ours=True)
        spans = b.told()
    before, after = (span for span in spans if span.name == "process")
    assert int.from_bytes(before.span_id) == attempt_span_id("r1", 1)
    assert [link.span_id for link in after.links] == [before.span_id]
    assert [link.trace_id for link in after.links] == [before.trace_id]
    assert attributes(before)["error.type"] == "let_go_lost"
    choices = [
        (span.parent_span_id == after.span_id, attributes(span)["headrace.choice"])
        for span in spans
        if span.name == "decode"
    ]
    assert choices == [(False, 1), (True, 0)]


@pytest.mark.parametrize(("why", "fails"), [("released", False), ("failed", True)])
def test_what_is_handed_back_has_not_failed(why: LetGo, fails: bool) -> None:
    with bench() as b:
        b.spans.let_go(b.held(), why)
        [process] = b.told()
    assert attributes(process)["headrace.let_go"] == why
    assert (process.status.code == process.status.STATUS_CODE_ERROR) is fails


def test_a_trace_that_is_not_recorded_is_not_recorded_here_either() -> None:
    with bench() as b:
        held = b.held(parent=PARENT[:-2] + "00")
        b.end(held)
        b.spans.settled(held, ours=True)
        assert b.told() == []


def test_without_a_receiver_nothing_is_read() -> None:
    spans = Spans(Tracing(), FakeClock())
    held = make_held()
    held.usages[0] = None  # pyright: ignore[reportArgumentType] - reading it would break
    spans.settled(held, ours=True)
    spans.let_go(held, "lost")
