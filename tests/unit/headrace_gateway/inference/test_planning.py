"""From calls to records: everything filled, nothing queued."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from headrace_contracts.codes import Code
from headrace_gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NoEngine,
    PermissionDenied,
)
from headrace_gateway.inference.calls import (
    Call,
    ChatPrompt,
    Message,
    Prompt,
    SamplingCall,
    TextPrompt,
    TokenPrompt,
)
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.planning import Plan, Planner
from headrace_gateway.inference.resume import EdgeNote
from headrace_gateway.settings import GatewaySettings
from headrace_gateway.text.pipeline import TextPipeline
from headrace_kit.traces import NoSpan
from headrace_transport.memory import MemoryGatewayWire
from support.clock import FakeClock
from support.wire import CALLER, END, Stack, call, toy_ids


class Desk:
    """A planner, with the toy model at hand."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.stack = Stack(self.clock)
        threads = ThreadPoolExecutor(1)
        self.planner = Planner(
            Catalog(
                MemoryGatewayWire(self.stack.broker),
                self.clock,
                make_text=TextPipeline.from_card,
                threads=threads,
                cache_s=0,
            ),
            GatewaySettings.model_validate(settings),
            self.clock,
            threads=threads,
            process="gateway-x",
        )

    async def plan(self, asked: Call) -> Plan:
        """A plan, with an engine there."""
        await self.stack.engine.appear()
        return await self.planner.plan(asked, arrived=self.clock.monotonic())

    async def refusal(self, asked: Call) -> GatewayError:
        """Why a call is refused."""
        with pytest.raises(GatewayError) as caught:
            await self.plan(asked)
        return caught.value


async def test_a_record_carries_everything_the_engine_needs() -> None:
    desk = Desk()
    caller = replace(CALLER, tenant="t", key_id="k", band=3)
    sampling = SamplingCall(max_tokens=7, n=2, stop=("a",), seed=5, logprobs=2)
    plan = await desk.plan(
        call("hey", caller=caller, sampling=sampling, cache_salt=b"s", deadline_s=2.5)
    )
    [record] = [session.record for session in plan.call.sessions]
    assert list(record.prompt) == toy_ids("hey")
    assert (record.tenant, record.key_id, record.band) == ("t", "k", 3)
    assert (record.n, record.sampling.max_new_tokens, record.sampling.seed) == (2, 7, 5)
    assert list(record.sampling.stop_token_ids) == [END]
    assert record.deadline_ms == desk.clock.wall_ms() + 2500
    assert record.submitted_ms == desk.clock.wall_ms()
    assert (record.gateway, record.cache_salt, record.version) == ("gateway-x", b"s", 1)
    note = EdgeNote.decode(record.edge)
    assert note is not None
    assert (note.stop, note.prompts, note.logprobs) == (("a",), 1, 2)
    assert await desk.stack.queue_is_empty()


async def test_messages_are_rendered_by_the_models_template() -> None:
    chat = replace(call(ChatPrompt([Message("user", "a"), Message("user", "b")])), kind="chat")
    plan = await Desk().plan(chat)
    assert list(plan.call.sessions[0].record.prompt) == toy_ids("ab")


async def test_long_prompts_give_the_same_tokens_on_a_thread() -> None:
    inline, threaded = Desk(inline_chars=1000), Desk(inline_chars=0)
    made = [
        list((await desk.plan(call("x" * 90))).call.sessions[0].record.prompt)
        for desk in (inline, threaded)
    ]
    assert made[0] == made[1] == toy_ids("x" * 90)


async def test_echo_is_the_prompts_own_text_control_tokens_and_all() -> None:
    plan = await Desk().plan(call(TokenPrompt([*toy_ids("a"), END]), echo=True))
    assert plan.echo == ["a<end>"]
    assert (await Desk().plan(call("a"))).echo == ()


async def test_prompts_and_choices_are_bounded_together() -> None:
    desk = Desk(max_prompts_per_call=10)
    assert (await desk.refusal(call())).param == "prompt"
    assert (await desk.refusal(call(*["x"] * 11))).param == "prompt"
    many = SamplingCall(n=128, max_tokens=1)
    assert (await desk.refusal(call(*["x"] * 9, sampling=many))).param == "n"


async def test_deadlines_are_checked_and_defaulted() -> None:
    desk = Desk(default_deadline_s=9, max_deadline_s=60)
    plan = await desk.plan(call("x"))
    assert plan.call.deadline == desk.clock.monotonic() + 9
    assert isinstance(await desk.refusal(call("x", deadline_s=0)), DeadlineExceeded)
    for bad in (61, float("nan"), float("inf")):
        refused = await desk.refusal(call("x", deadline_s=bad))
        assert isinstance(refused, InvalidRequest)
        assert refused.param == "timeout"
    assert (await Desk().plan(call("x"))).call.deadline is None


async def test_models_are_checked_before_anything_else_of_the_call() -> None:
    desk, bad = Desk(), SamplingCall(temperature=99)
    assert isinstance(await desk.refusal(call("x", model="no", sampling=bad)), ModelNotFound)
    other = replace(CALLER, models=frozenset({"other"}))
    assert isinstance(await desk.refusal(call("x", caller=other)), PermissionDenied)


async def test_a_bad_request_is_a_bad_request_even_without_an_engine() -> None:
    desk = Desk()
    await desk.stack.engine.appear()
    await desk.stack.engine.leave()
    with pytest.raises(InvalidRequest):
        await desk.planner.plan(call("x", sampling=SamplingCall(n=0)), arrived=0)
    with pytest.raises(NoEngine):
        await desk.planner.plan(call("x"), arrived=0)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [(TextPrompt("x" * 5_000), "prompt"), (ChatPrompt([Message("user", "x" * 5_000)]), "messages")],
)
async def test_a_prompt_too_long_by_its_bytes_alone_is_refused_at_its_parameter(
    prompt: Prompt, param: str
) -> None:
    kind = "chat" if isinstance(prompt, ChatPrompt) else "completion"
    refused = await Desk().refusal(replace(call(prompt), kind=kind))
    assert (refused.code, refused.param) == (Code.CONTEXT_LENGTH_EXCEEDED, param)
    assert "is so long that it has" in refused.message


async def test_a_trace_context_goes_on_only_when_it_is_one() -> None:
    good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    odd = ("", "00-xyz", "00-" + "A" * 32 + "-" + "b" * 16 + "-01", "x" * 9999, good + "\n")
    for given, goes_on in ((good, good), *((each, "") for each in odd)):
        plan = await Desk().plan(call("x", span=NoSpan(given)))
        assert plan.call.sessions[0].record.traceparent == goes_on
