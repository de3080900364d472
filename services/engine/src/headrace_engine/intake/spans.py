"""Spans: what became of a request here, told to the traces once it is over or let go.

Owner    io thread
Writes   nothing; tells
Never    costs anything where traces go nowhere; runs while a request does
Rules    outputs.flat
Next     headrace_kit.traces

A ``process`` span lasts from claim to settlement, below the gateway's span; in it, for each
choice, ``queue``, ``prefill`` and ``decode`` follow each other. Their times are those that the
engine thread notes in any case. The id of a ``process`` span follows from request and attempt, so
that a successor can point at the attempt before it, which may have died without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final

from headrace_contracts.codes import Code, FinishReason
from headrace_kit.clock import Clock
from headrace_kit.traces import Span, Tracing, Value, trace_id_of, traceparent_of

from headrace_engine.intake.held import Held
from headrace_engine.intake.publisher_frames import usage_message
from headrace_engine.metrics import LetGo
from headrace_engine.state.outputs import SequenceUsage

_HANDED_BACK: Final = "released"
"""Being let go this way is no failure: an engine that drains says so."""


class Spans:
    """Tells of one engine's requests."""

    def __init__(self, tracing: Tracing, clock: Clock) -> None:
        self._tracing = tracing
        self._clock = clock

    def settled(self, held: Held, *, ours: bool) -> None:
        """The request has its terminal status; ``ours``: the server agreed."""
        if self._tracing.on:
            self._tell(held, None if ours else "lost")

    def let_go(self, held: Held, why: LetGo) -> None:
        """Somebody else goes on with it, or nobody does."""
        if self._tracing.on:
            self._tell(held, why)

    def _tell(self, held: Held, let_go: LetGo | None) -> None:
        now_s = self._clock.monotonic()
        unix_s = self._clock.wall_ms() / 1000 - now_s
        record = held.record
        span = self._tracing.begin(
            "process",
            kind="consumer",
            parent=record.traceparent,
            start_ns=_ns(unix_s + held.claimed_s),
            span_id=attempt_span_id(held.id, held.attempt),
        )
        if span.recording:
            waited_s = unix_s + held.claimed_s - record.submitted_ms / 1000
            span.set(
                {
                    "gen_ai.provider.name": "headrace",
                    "gen_ai.request.model": record.model,
                    "gen_ai.response.id": held.id,
                    "headrace.attempt": held.attempt,
                    "headrace.wire_queue_s": round(max(0.0, waited_s), 6),
                }
            )
            _link_to_attempt_before(span, held)
            _tell_usage(span, held)
            for choice, usage in held.usages.items():
                if choice not in held.ended_before:
                    self._tell_choice(span, unix_s + held.claimed_s, choice, usage)
            if let_go is not None:
                _tell_let_go(span, let_go)
            elif held.over:
                _tell_failure(span, held)
        span.end(_ns(unix_s + now_s))

    def _tell_choice(self, above: Span, at_s: float, choice: int, usage: SequenceUsage) -> None:
        told: dict[str, tuple[float, Mapping[str, Value]]] = {
            "queue": (
                usage.queue_s,
                {f"headrace.wait.{reason}_s": waited for reason, waited in usage.waits.items()},
            ),
            "prefill": (
                usage.prefill_s,
                {
                    "gen_ai.usage.input_tokens": usage.prompt_tokens,
                    "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                },
            ),
            "decode": (usage.decode_s, {"gen_ai.usage.output_tokens": usage.completion_tokens}),
        }
        for name, (lasted_s, attributes) in told.items():
            if lasted_s <= 0:
                continue  # it ended before
            part = self._tracing.begin(
                name,
                parent=above.traceparent,
                start_ns=_ns(at_s),
                attributes={"headrace.choice": choice, **attributes},
            )
            at_s += lasted_s
            part.end(_ns(at_s))


def attempt_span_id(request: str, attempt: int) -> int:
    """The id of the ``process`` span of an attempt; never 0."""
    digest = sha256(f"{request}\0{attempt}".encode()).digest()
    return int.from_bytes(digest[:8]) or 1


def _link_to_attempt_before(span: Span, held: Held) -> None:
    trace_id = trace_id_of(held.record.traceparent)
    if held.attempt > 1 and trace_id is not None:
        before = attempt_span_id(held.id, held.attempt - 1)
        span.link(traceparent_of(trace_id, before))


def _tell_usage(span: Span, held: Held) -> None:
    if not held.ends:
        return
    usage = usage_message(held.usages.values())
    span.set(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.response.finish_reasons": [
                FinishReason(held.ends[choice].reason).name.lower() for choice in sorted(held.ends)
            ],
            "headrace.preemptions": usage.preemptions,
        }
    )


def _tell_failure(span: Span, held: Held) -> None:
    for finish in held.ends.values():
        reason = FinishReason(finish.reason)
        if reason in (FinishReason.ERROR, FinishReason.DEADLINE):
            code = Code(finish.code).wire_name if finish.code else reason.name.lower()
            span.fail(code, finish.message)
            return


def _tell_let_go(span: Span, why: LetGo) -> None:
    span.set({"headrace.let_go": why})
    if why != _HANDED_BACK:
        span.fail(f"let_go_{why}")


def _ns(unix_s: float) -> int:
    return int(unix_s * 1e9)
