"""Every state of a request has its word, and only its owner hears it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.scheduler.reasons import Reason
from headrace_gateway.errors import RequestNotFound
from headrace_gateway.inference.service import InferenceService
from headrace_transport.interface import EngineInfo, Wait
from support.wire import CALLER, MODEL, Stack, call, read

BEAT_MS = 60_000


def says(stack: Stack, **waits: Wait) -> EngineInfo:
    """What the engine tells of itself."""
    named = {name.replace("_", "-"): wait for name, wait in waits.items()}
    return EngineInfo(stack.engine.name, MODEL, "ready", 1, 1, 9, 9, named)


async def reason_of(service: InferenceService, call_id: str) -> str:
    """The word."""
    return (await service.why(call_id, CALLER)).reason


async def test_a_queued_request_tells_what_is_before_it() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        for number in range(3):
            await service.start(call("x", request_id=f"cmpl-{number}"))
        why = await service.why("cmpl-2", CALLER)
    assert (why.status, why.reason, why.ahead, why.depth, why.engines) == (
        "queued",
        "queue",
        2,
        3,
        1,
    )
    assert "2 of its tenant's requests" in why.explanation
    assert why.engine is None
    assert why.waited_s >= 0


async def test_a_claimed_request_tells_what_its_engine_says() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        await service.start(call("x"))
        [claimed] = await stack.engine.claim()
        assert await reason_of(service, "cmpl-1") == "running"
        for reason, words in (
            ("blocks", "short of 7 blocks"),
            ("priority", "Others go first"),
            ("batch_rows", "as many sequences"),
            ("token_budget", "tokens of its engine's batches"),
            ("producer", "share"),
            ("in_flight", "last batch"),
            ("strange", "strange 7"),
        ):
            info = says(stack, cmpl_1=Wait(reason, 7))
            await stack.engine.wire.beat_engine(info, ttl_ms=BEAT_MS)
            why = await service.why("cmpl-1", CALLER)
            assert (why.reason, why.status) == (reason, "running")
            assert words in why.explanation
            assert why.engine == stack.engine.name
        await stack.engine.say(claimed, "ab")
        await stack.engine.wire.beat_engine(says(stack), ttl_ms=BEAT_MS)
        why = await service.why("cmpl-1", CALLER)
    assert (why.reason, why.tokens, why.depth) == ("running", 2, None)


async def test_every_reason_that_engines_give_has_a_sentence_of_its_own() -> None:
    stack = Stack()
    sentences: set[str] = set()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        await service.start(call("x"))
        await stack.engine.claim()
        for reason in Reason:
            info = says(stack, cmpl_1=Wait(reason.value, 7))
            await stack.engine.wire.beat_engine(info, ttl_ms=BEAT_MS)
            sentences.add((await service.why("cmpl-1", CALLER)).explanation)
    assert len(sentences) == len(Reason)
    assert not any(sentence.startswith("It waits at its engine") for sentence in sentences)


async def test_without_an_engine_and_between_two_it_says_so() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        await service.start(call("x"))
        [claimed] = await stack.engine.claim()
        attempts = {claimed.record.id: claimed.attempt}
        await stack.engine.wire.release(MODEL, stack.engine.name, attempts)
        assert await reason_of(service, "cmpl-1") == "successor"
        await stack.engine.leave()
        assert await reason_of(service, "cmpl-1") == "no_engine"


async def test_an_ended_request_says_how() -> None:
    stack = Stack()
    async with stack.claimed(stack.gateway()) as (service, running, claimed):
        await stack.engine.say(claimed, "abc", finish=FinishReason.LENGTH)
        await read(running)
        await running.aclose()
        assert await stack.engine.end(claimed, {0: FinishReason.LENGTH}, since=[0])
        why = await service.why("cmpl-1", CALLER)
    assert (why.status, why.reason) == ("finished", "finished")
    assert "length" in why.explanation


async def test_the_list_holds_own_live_calls_the_newest_first() -> None:
    stack = Stack()
    other = replace(CALLER, key_id="other")
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        await service.start(call("a", "b", request_id="cmpl-many"))
        await service.start(call("x", request_id="cmpl-one"))
        await service.start(call("x", request_id="cmpl-other", caller=other))
        listed, more = await service.requests(CALLER, limit=10)
        assert {each.info.id for each in listed} == {"cmpl-many", "cmpl-one"}
        assert {each.reason for each in listed} == {"queue"}
        assert not more
        created = [each.info.created_ms for each in listed]
        assert created == sorted(created, reverse=True)
        assert await service.requests(CALLER, limit=1) == (listed[:1], True)
        assert await service.cancel("cmpl-many", CALLER)
        assert [each.info.id for each in (await service.requests(CALLER, limit=10))[0]] == [
            "cmpl-one"
        ]


async def test_another_keys_request_has_no_reason_that_one_could_ask_for() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        await service.start(call("x"))
        with pytest.raises(RequestNotFound):
            await service.why("cmpl-1", replace(CALLER, key_id="other"))
