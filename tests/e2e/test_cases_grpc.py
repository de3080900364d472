"""RPCs that were given up must not go on in the engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import grpc
import pytest
from headrace_contracts.pb import inference_pb2, inference_pb2_grpc
from support.figures import gateway_metrics
from support.idle import check_idle
from support.served import ServedStack
from support.waiting import wait_until


@pytest.fixture
def channel(stack: ServedStack) -> Generator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc_port}") as made:
        # connected: what a deadline leaves is for the call
        grpc.channel_ready_future(made).result(timeout=30)
        yield made


def ask(stack: ServedStack, tokens: int, prompt: str = "Once upon a time") -> Any:
    return inference_pb2.GenerateRequest(
        model=stack.model, text=prompt, max_tokens=tokens, ignore_eos=True, temperature=0
    )


def _generate(
    stack: ServedStack, channel: grpc.Channel, request: Any, timeout: float | None
) -> Any:
    stub: Any = inference_pb2_grpc.InferenceStub(channel)
    metadata = (("authorization", f"Bearer {stack.key}"),)
    return stub.Generate(request, timeout=timeout, metadata=metadata)


def _cancelled(stack: ServedStack) -> float:
    return sum(
        value
        for name, value in gateway_metrics(stack).items()
        if name.startswith("headrace_gateway_requests_finished_total")
        and ('reason="cancelled"' in name or 'reason="deadline"' in name)
    )


def _wait_for(stack: ServedStack, count: float) -> None:
    wait_until(lambda: _cancelled(stack) >= count, lambda: f"{_cancelled(stack)} of {count}")


@pytest.mark.case("BR-38")
def test_a_stream_over_its_deadline_stops_in_the_engine(
    stack: ServedStack, channel: grpc.Channel
) -> None:
    before = _cancelled(stack)
    with pytest.raises(grpc.RpcError) as failure:
        list(_generate(stack, channel, ask(stack, 4000), 1.0))
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    check_idle(stack)
    _wait_for(stack, before + 1)


@pytest.mark.case("BR-38")
def test_a_stream_that_its_client_cancels_stops_in_the_engine(
    stack: ServedStack, channel: grpc.Channel
) -> None:
    before = _cancelled(stack)
    stream = _generate(stack, channel, ask(stack, 4000), None)
    for _ in range(5):
        next(stream)
    stream.cancel()
    with pytest.raises(grpc.RpcError) as failure:
        list(stream)
    assert failure.value.code() is grpc.StatusCode.CANCELLED
    check_idle(stack)
    _wait_for(stack, before + 1)


@pytest.mark.case("BR-38")
def test_a_deadline_inside_a_long_prefill_stops_it(
    stack: ServedStack, channel: grpc.Channel
) -> None:
    request = ask(stack, 4, "seven words that have never been seen " * 600)
    with pytest.raises(grpc.RpcError) as failure:
        list(_generate(stack, channel, request, 0.5))
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    check_idle(stack)


@pytest.mark.case("BR-38")
def test_no_time_at_all_starts_nothing(stack: ServedStack, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        list(_generate(stack, channel, ask(stack, 4), 0.0))
    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    check_idle(stack)
