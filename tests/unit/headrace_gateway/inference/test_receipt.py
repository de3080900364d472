"""Every call is counted once, under one reason, with its times."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import RequestRecord
from headrace_gateway.errors import Conflict, EngineFailed, HandedOver
from headrace_gateway.inference.receipt import Receipts, outcome
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import Session
from headrace_gateway.metrics import GatewayMetrics
from headrace_gateway.text.pipeline import TextPipeline
from headrace_kit.metrics import Registry
from support.clock import FakeClock
from support.wire import toy_card, toy_files

TEXT = TextPipeline.from_card(toy_card(), toy_files())


def ended(clock: FakeClock, *reasons: FinishReason, resumed: bool = False) -> OpenCall:
    """A call of 4 s with a choice for each reason; 3 tokens each, at 1, 2 and 3 s."""
    session = Session(
        RequestRecord(id="r", model="toy", n=len(reasons)),
        choice_text=lambda: TEXT.choice(),
        prompt_tokens=5,
        now=clock.monotonic(),
    )
    session.cached_tokens = 4
    call = OpenCall(
        call_id="r",
        model="toy",
        kind="chat",
        key_id="k",
        tenant="t",
        n=len(reasons),
        sessions=[session],
        names=TEXT,
        fingerprint="fp",
        created_ms=0,
        arrived=clock.monotonic(),
        deadline=None,
        resumed=resumed,
    )
    for token in range(3):
        clock.advance(1)
        for index in range(len(reasons)):
            session.take_row(
                index, attempt=1, first=token, tokens=[65], logged=0, now=clock.monotonic()
            )
    clock.advance(1)
    for index, reason in enumerate(reasons):
        session.take_finish(index, reason, None, "")
    return call


def test_times_and_tokens_of_a_call() -> None:
    clock, registry = FakeClock(), Registry("gateway")
    Receipts(GatewayMetrics(registry), clock).write(
        ended(clock, FinishReason.LENGTH, FinishReason.STOP)
    )
    text = registry.exposition().decode()
    for line in (
        'requests_finished_total{model="toy",reason="length"} 1.0',
        'prompt_tokens_total{model="toy"} 5.0',
        'completion_tokens_total{model="toy"} 6.0',
        'cached_tokens_total{model="toy"} 4.0',
        'time_to_first_token_seconds_sum{model="toy",operation="chat"} 1.0',
        'time_per_output_token_seconds_sum{model="toy",operation="chat"} 2.0',
        'time_per_output_token_seconds_count{model="toy",operation="chat"} 2.0',
        'request_seconds_sum{model="toy",operation="chat"} 4.0',
    ):
        assert f"headrace_gateway_{line}" in text


def test_a_resumed_call_is_not_counted_a_second_time() -> None:
    clock, registry = FakeClock(), Registry("gateway")
    Receipts(GatewayMetrics(registry), clock).write(ended(clock, FinishReason.LENGTH, resumed=True))
    assert b"requests_finished_total{" not in registry.exposition()


@pytest.mark.parametrize(
    ("reasons", "word"),
    [
        ((FinishReason.STOP,), "stop"),
        ((FinishReason.STOP, FinishReason.LENGTH), "length"),
        ((FinishReason.LENGTH, FinishReason.CANCELLED), "cancelled"),
        ((FinishReason.CANCELLED, FinishReason.DEADLINE), "cancelled"),
        ((FinishReason.STOP, FinishReason.ERROR), "error"),
    ],
)
def test_the_worst_choice_gives_the_call_its_word(
    reasons: tuple[FinishReason, ...], word: str
) -> None:
    assert outcome(ended(FakeClock(), *reasons)) == word


def test_a_failure_is_an_error_whatever_the_choices_say() -> None:
    clock = FakeClock()
    call = ended(clock, FinishReason.STOP)
    call.sessions[0].failure = EngineFailed("gone")
    assert outcome(call) == "error"
    assert call.sessions[0].failure.code is Code.ENGINE_FAILED
    for elsewhere in (Conflict("taken up elsewhere"), HandedOver(within_s=1)):
        call.sessions[0].failure = elsewhere
        assert outcome(call) == "moved"


def test_advice_for_a_full_house_follows_how_long_calls_take() -> None:
    clock = FakeClock()
    receipts = Receipts(GatewayMetrics(Registry("gateway")), clock)
    assert receipts.advise_s(1) == 1
    for _ in range(60):
        receipts.write(ended(clock, FinishReason.STOP))
    assert receipts.advise_s(1) == 4
    assert receipts.advise_s(100) == 1
