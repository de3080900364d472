"""The end of a call: its metrics, and the one line that is logged of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger

from headrace_gateway.errors import Conflict, HandedOver
from headrace_gateway.inference.admission import RETRY_MAX_S, RETRY_MIN_S
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.spans import operation_of, tell_end
from headrace_gateway.metrics import GatewayMetrics

log = get_logger(__name__)

SMOOTHING: Final = 0.1
"""Weight of the newest call in the mean time a call takes."""


class Receipts:
    """Counts and logs each call once, and knows how long calls take."""

    def __init__(
        self,
        metrics: GatewayMetrics,
        clock: Clock,
        *,
        settle: Callable[[OpenCall], None] | None = None,
    ) -> None:
        """``settle`` corrects what was taken from the key's minute."""
        self._settle = settle
        self._metrics = metrics
        self._clock = clock
        self._mean_s = 1.0

    def advise_s(self, running: int) -> int:
        """Whole seconds until one of ``running`` calls should have ended, 1..120."""
        return max(RETRY_MIN_S, min(RETRY_MAX_S, math.ceil(self._mean_s / max(1, running))))

    def write(self, call: OpenCall) -> None:
        """Closes the books on a call that has ended."""
        now = self._clock.monotonic()
        total_s = now - call.arrived
        self._mean_s += SMOOTHING * (total_s - self._mean_s)
        usage, reason = call.usage, outcome(call)
        choices = [choice for session in call.sessions for choice in session.choices]
        firsts = [choice.first_at for choice in choices if choice.first_at is not None]
        ttft_s = min(firsts) - call.arrived if firsts else None
        if self._settle is not None and reason != "moved":  # who goes on with it uses the rest
            self._settle(call)
        if not call.resumed:  # its first gateway counted it
            self._count(call, reason, total_s, ttft_s)
        attempts, code = max(session.attempt for session in call.sessions), _code(call)
        tell_end(
            call.span,
            model=call.model,
            usage=usage,
            finishes=[choice.finish for choice in choices if choice.finish is not None],
            first_token_s=ttft_s,
            attempts=attempts,
            outcome=reason,
            code=code,
        )
        queues = [s.engine_queue_s for s in call.sessions if s.engine_queue_s is not None]
        log.info(
            "request.finished",
            id=call.id,
            kind=call.kind,
            model=call.model,
            tenant=call.tenant,
            key=call.key_id,
            reason=reason,
            cause=call.cause or None,
            code=code,
            choices=len(choices),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            engine_queue_s=_rounded(max(queues, default=None)),
            first_token_s=_rounded(ttft_s),
            total_s=_rounded(total_s),
            attempts=attempts,
            resumed=call.resumed,
            trace_id=call.span.trace_id,
        )

    def _count(self, call: OpenCall, reason: str, total_s: float, ttft_s: float | None) -> None:
        metrics, model, usage = self._metrics, call.model, call.usage
        metrics.finished.labels(model, reason).inc()
        metrics.prompt_tokens.labels(model).inc(usage.prompt_tokens)
        metrics.completion_tokens.labels(model).inc(usage.completion_tokens)
        metrics.cached_tokens.labels(model).inc(usage.cached_tokens)
        operation = operation_of(call.kind)
        metrics.request_time.labels(model, operation).observe(total_s)
        if ttft_s is not None:
            metrics.first_token.labels(model, operation).observe(ttft_s)
        for session in call.sessions:
            for choice in session.choices:
                if choice.first_at is not None and len(choice.tokens) > 1:
                    gap_s = (choice.last_at - choice.first_at) / (len(choice.tokens) - 1)
                    metrics.token_gap.labels(model, operation).observe(gap_s)


def outcome(call: OpenCall) -> str:
    """One word for how a call ended: the worst of its choices; ``moved`` to another gateway."""
    failures = [session.failure for session in call.sessions if session.failure is not None]
    if failures:
        moved = all(isinstance(each, Conflict | HandedOver) for each in failures)
        return "moved" if moved else "error"
    return call.finish.name.lower() if call.finish is not None else "stop"


def _code(call: OpenCall) -> str | None:
    for session in call.sessions:
        if session.failure is not None:
            return session.failure.code.wire_name
        for choice in session.choices:
            if choice.code is not None:
                return choice.code.wire_name
    return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
