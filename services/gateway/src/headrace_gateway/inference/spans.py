"""What a call's span tells, in the words of OpenTelemetry's conventions for generative models.

No prompt and no output ever enters a span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import RequestRecord
from headrace_kit.traces import Span, Value

from headrace_gateway.inference.calls import Call, UsageTotal

PROVIDER: Final = "headrace"
Operation = Literal["chat", "text_completion"]


def operation_of(kind: str) -> Operation:
    """The conventions' name of what a call of this kind asks for."""
    return "chat" if kind == "chat" else "text_completion"


def tell_request(call: Call, record: RequestRecord) -> None:
    """What was asked for; ``record`` is the first that was made of it."""
    span, asked = call.span, call.sampling
    if not span.recording:
        return
    operation, sampling = operation_of(call.kind), record.sampling
    told: dict[str, Value] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.request.max_tokens": sampling.max_new_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.response.id": call.request_id,
        "headrace.tenant": record.tenant,
        "headrace.key": record.key_id,
        "headrace.band": record.band,
        "headrace.prompts": len(call.prompts),
    }
    if sampling.top_k:
        told["gen_ai.request.top_k"] = sampling.top_k
    if sampling.frequency_penalty:
        told["gen_ai.request.frequency_penalty"] = sampling.frequency_penalty
    if sampling.presence_penalty:
        told["gen_ai.request.presence_penalty"] = sampling.presence_penalty
    if asked.seed is not None:
        told["gen_ai.request.seed"] = asked.seed
    if record.n != 1:
        told["gen_ai.request.choice.count"] = record.n
    span.rename(f"{operation} {record.model}")
    span.set(told)


def tell_end(
    span: Span,
    *,
    model: str,
    usage: UsageTotal,
    finishes: Sequence[FinishReason],
    first_token_s: float | None,
    attempts: int,
    outcome: str,
    code: str | None,
) -> None:
    """How a call ended; ``outcome`` and ``code`` as its log line has them."""
    if not span.recording:
        return
    span.set(
        {
            "gen_ai.response.model": model,
            "gen_ai.response.finish_reasons": [reason.name.lower() for reason in finishes],
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "headrace.attempts": attempts,
            "headrace.outcome": outcome,
        }
    )
    if first_token_s is not None:
        span.set({"gen_ai.response.time_to_first_chunk": round(first_token_s, 6)})
    if outcome in ("error", "deadline"):
        span.fail(code or outcome)
