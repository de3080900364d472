"""Messages to calls, and deltas back."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.inference_pb2 import GenerateRequest, TokenPrompt
from headrace_gateway.errors import (
    Cancelled,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
)
from headrace_gateway.inference.calls import Call, Delta, TokenInfo, TopToken, UsageTotal
from headrace_gateway.rpc.convert import call_of, event_of, usage_of
from headrace_kit.traces import NO_SPAN
from support.wire import CALLER


def converted(request: GenerateRequest) -> Call:
    """The call of a message."""
    return call_of(request, CALLER, request_id="r", deadline_s=None, span=NO_SPAN)


def test_absent_fields_stay_open_and_given_ones_arrive_even_when_they_are_zero() -> None:
    bare = converted(GenerateRequest(model="m", text="x")).sampling
    assert bare.temperature is None
    assert bare.seed is None
    assert bare.n is None
    assert bare.logprobs is None
    assert bare.max_tokens == 16
    given = converted(
        GenerateRequest(
            model="m",
            text="x",
            temperature=0,
            seed=0,
            logprobs=0,
            max_tokens=3,
            logit_bias={7: 1.5},
            stop=["a"],
            stop_token_ids=[9],
            ignore_eos=True,
        )
    ).sampling
    assert (given.temperature, given.seed, given.logprobs, given.max_tokens) == (0, 0, 0, 3)
    assert given.logit_bias == {7: 1.5}
    assert (given.stop, given.stop_token_ids, given.ignore_eos) == (("a",), (9,), True)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerateRequest(model="m\0", text="x"), "model"),
        (GenerateRequest(model="m", text="x\0y"), "text"),
        (GenerateRequest(model="m", text="x", stop=["a", "\0"]), "stop"),
        (GenerateRequest(model="m", chat={"messages": [{"role": "user\0"}]}), "messages"),
        (GenerateRequest(model="m", chat={"messages": [{"content": "\0"}]}), "messages"),
        (GenerateRequest(model="m", chat={"messages": [{"name": "n\0"}]}), "messages"),
    ],
)
def test_a_nul_is_refused_wherever_it_stands(request_: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest, match="NUL") as caught:
        converted(request_)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (GenerateRequest(text="x"), "model"),
        (GenerateRequest(model="m"), "prompt"),
        (GenerateRequest(model="m", chat={}), "messages"),
    ],
)
def test_what_is_missing_is_named(request_: GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        converted(request_)
    assert caught.value.param == param


def test_a_delta_becomes_an_event_with_what_was_asked_for() -> None:
    top = TopToken(8, "b", b"b", -2.0)
    info = TokenInfo(7, "a", b"a", -1.0, [top])
    delta = Delta(2, "a", (7,), (info,), 1, FinishReason.LENGTH)
    event = event_of("r", delta, "1", token_ids=False)
    assert (event.id, event.index, event.text, event.cursor) == ("r", 2, "a", "1")
    assert list(event.token_ids) == []
    assert event.finish == codes_pb2.FINISH_REASON_LENGTH
    assert event.logprobs[0].top[0].token == "b"
    assert list(event_of("r", delta, "1", token_ids=True).token_ids) == [7]


@pytest.mark.parametrize(
    ("finish", "code", "kind", "becomes"),
    [
        (FinishReason.CANCELLED, None, Cancelled, Code.CANCELLED),
        (FinishReason.DEADLINE, None, DeadlineExceeded, Code.DEADLINE_EXCEEDED),
        (FinishReason.ERROR, Code.POISONED, GatewayError, Code.POISONED),
        (FinishReason.ERROR, None, GatewayError, Code.INTERNAL),
    ],
)
def test_a_choice_that_failed_is_an_error(
    finish: FinishReason, code: Code | None, kind: type[GatewayError], becomes: Code
) -> None:
    with pytest.raises(kind) as caught:
        event_of("r", Delta(0, "", (), (), 0, finish, code, "why"), "0", token_ids=False)
    assert caught.value.code is becomes
    assert caught.value.message == "why"


def test_token_prompts_and_usage_arrive_as_they_are() -> None:
    call = converted(GenerateRequest(model="m", tokens=TokenPrompt(ids=[1, 2])))
    assert call.kind == "completion"
    usage = usage_of(UsageTotal(1, 2, 3))
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (1, 2, 3)
