"""Messages of ``inference.proto`` to calls, and events back. Next: headrace_gateway.rpc.servicer"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.inference_pb2 import GenerateEvent, GenerateRequest, TokenLogprob
from headrace_contracts.pb.queue_pb2 import Usage
from headrace_kit.traces import Span

from headrace_gateway.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineFailed,
    GatewayError,
    InvalidRequest,
)
from headrace_gateway.inference.calls import (
    Call,
    Caller,
    ChatPrompt,
    Delta,
    Message,
    Prompt,
    SamplingCall,
    TextPrompt,
    TokenInfo,
    TokenPrompt,
    UsageTotal,
)

COMPLETION_TOKENS = 16
"""Output tokens of a raw prompt that does not say how many; as over HTTP."""


def call_of(
    request: GenerateRequest,
    caller: Caller,
    *,
    request_id: str,
    deadline_s: float | None,
    span: Span,
) -> Call:
    """The call that a message asks for. Raises ``InvalidRequest``."""
    if not request.model:
        raise InvalidRequest("model is missing.", param="model")
    _check_strings(request)
    prompt = _prompt(request)
    chat = isinstance(prompt, ChatPrompt)
    return Call(
        kind="chat" if chat else "completion",
        model=request.model,
        prompts=[prompt],
        sampling=_sampling(request, None if chat else COMPLETION_TOKENS),
        caller=caller,
        request_id=request_id,
        cache_salt=request.cache_salt,
        deadline_s=deadline_s,
        resumable=True,
        span=span,
    )


def event_of(call_id: str, delta: Delta, cursor: str, *, token_ids: bool) -> GenerateEvent:
    """A delta as a message. Raises the error that a failed choice ended with."""
    failure = failure_of(delta)
    if failure is not None:
        raise failure
    event = GenerateEvent(id=call_id, index=delta.index, text=delta.text, cursor=cursor)
    if token_ids:
        event.token_ids.extend(delta.token_ids)
    event.logprobs.extend(map(_logprob, delta.tokens))
    if delta.finish is not None:
        event.finish = delta.finish.value
    return event


def usage_of(total: UsageTotal) -> Usage:
    """Sums over a call."""
    return Usage(
        prompt_tokens=total.prompt_tokens,
        completion_tokens=total.completion_tokens,
        cached_tokens=total.cached_tokens,
    )


def failure_of(delta: Delta) -> GatewayError | None:
    """The error that a choice ended with, if it did."""
    match delta.finish:
        case None | FinishReason.STOP | FinishReason.LENGTH:
            return None
        case FinishReason.CANCELLED:
            return Cancelled(delta.message or "The request was cancelled.")
        case FinishReason.DEADLINE:
            return DeadlineExceeded(delta.message or "The deadline passed.")
        case FinishReason.ERROR:
            error = EngineFailed(delta.message or "The request failed.")
            error.code = delta.code or Code.INTERNAL
            return error


def _check_strings(request: GenerateRequest) -> None:
    """As over HTTP, no string holds a NUL. Protobuf has seen to the rest: all of it is UTF-8."""
    strings = [("model", request.model), ("text", request.text)]
    strings += [("stop", stop) for stop in request.stop]
    for message in request.chat.messages:
        strings += [("messages", part) for part in (message.role, message.content, message.name)]
    for name, text in strings:
        if "\0" in text:
            raise InvalidRequest("This string holds a NUL.", param=name)


def _prompt(request: GenerateRequest) -> Prompt:
    match request.WhichOneof("prompt"):
        case "text":
            return TextPrompt(request.text)
        case "tokens":
            return TokenPrompt(tuple(request.tokens.ids))
        case "chat":
            messages: Sequence[Message] = [
                Message(message.role, message.content, message.name or None)
                for message in request.chat.messages
            ]
            if not messages:
                raise InvalidRequest("chat has no messages.", param="messages")
            return ChatPrompt(messages)
        case _:
            raise InvalidRequest("There is no prompt.", param="prompt")


def _sampling(request: GenerateRequest, max_tokens: int | None) -> SamplingCall:
    def given(name: str) -> bool:
        return request.HasField(name)  # pyright: ignore[reportArgumentType]

    return SamplingCall(
        n=request.n if given("n") else None,
        max_tokens=request.max_tokens if given("max_tokens") else max_tokens,
        min_tokens=request.min_tokens if given("min_tokens") else None,
        temperature=request.temperature if given("temperature") else None,
        top_p=request.top_p if given("top_p") else None,
        top_k=request.top_k if given("top_k") else None,
        min_p=request.min_p if given("min_p") else None,
        presence_penalty=request.presence_penalty if given("presence_penalty") else None,
        frequency_penalty=request.frequency_penalty if given("frequency_penalty") else None,
        repetition_penalty=request.repetition_penalty if given("repetition_penalty") else None,
        logit_bias=dict(request.logit_bias) or None,
        seed=request.seed if given("seed") else None,
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=request.logprobs if given("logprobs") else None,
    )


def _logprob(info: TokenInfo) -> TokenLogprob:
    return TokenLogprob(
        id=info.id,
        token=info.text,
        logprob=info.logprob,
        top=[TokenLogprob(id=top.id, token=top.text, logprob=top.logprob) for top in info.top],
    )
