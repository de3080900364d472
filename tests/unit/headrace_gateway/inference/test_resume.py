"""Streams that are taken up again, at the same gateway or at another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.errors import Conflict, InvalidRequest, RequestNotFound
from headrace_gateway.inference.calls import SamplingCall
from headrace_gateway.inference.resume import EdgeNote, parse_cursor, place, record_ids
from headrace_transport.errors import CommandFailed, TransportUnavailable
from headrace_transport.interface import EngineInfo, Lease, RequestState
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.waiting import eventually
from support.wire import CALLER, Gateway, LateAttach, Stack, call, done, finishes, read, texts

LENGTH = FinishReason.LENGTH


async def test_a_reader_that_comes_back_in_its_grace_goes_on_where_it_was() -> None:
    stack = Stack()
    gateway = stack.gateway(resume_grace_s=30)
    async with stack.claimed(gateway) as (service, running, claimed):
        await stack.engine.say(claimed, "abc")
        await read(running, until=1)
        cursor = running.cursor
        await running.aclose()
        await stack.engine.say(claimed, "def", finish=LENGTH)
        again = await service.resume("cmpl-1", cursor, CALLER)
        events = await read(again)
        await again.aclose()
    assert cursor == "3"
    assert texts(events) == {0: "def"}
    assert done(events).usage.completion_tokens == 6
    assert gateway.value("headrace_gateway_resumes_total", source="here") == 1


async def test_grace_that_runs_out_cancels() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    async with stack.claimed(stack.gateway(resume_grace_s=0.1)) as (_, running, claimed):
        await running.aclose()
        assert not await stack.engine.marks(claimed)
        clock.advance(0.2)
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED


async def test_another_gateway_goes_on_from_log_and_engine_with_the_same_stop_strings() -> None:
    stack = Stack()
    first, second = stack.gateway(resume_grace_s=30), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        sampling = SamplingCall(n=2, max_tokens=20, stop=("END",))
        running = await here.start(call("x", sampling=sampling))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "abc", choice=0)
        await stack.engine.say(claimed, "xyz", choice=1)
        await read(running, until=2)
        cursor = running.cursor
        await running.aclose()
        await stack.engine.say(claimed, "de", choice=0, log=False)
        again = await there.resume("cmpl-1", cursor, CALLER)
        await stack.engine.obey_attach(claimed)
        await stack.engine.say(claimed, "fEND!", choice=0)
        await stack.engine.say(claimed, "", choice=1, finish=LENGTH)
        events = await read(again)
        mark = await stack.engine.await_mark(claimed)
        await again.aclose()
    assert cursor == "3,3"
    assert texts(events) == {0: "def", 1: ""}
    assert finishes(events) == {0: FinishReason.STOP, 1: LENGTH}
    assert (mark.reason, mark.choice) == (FinishReason.STOP, 0)
    assert second.value("headrace_gateway_resumes_total", source="engine") == 1


async def test_the_gateway_that_lost_a_stream_to_another_does_not_cancel_it() -> None:
    clock = FakeClock()
    stack = Stack(clock)
    first, second = stack.gateway(resume_grace_s=0.3), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "a")
        await running.aclose()
        again = await there.resume("cmpl-1", "", CALLER)
        await stack.engine.obey_attach(claimed)
        clock.advance(0.6)
        await eventually(lambda: closed(first))
        assert not await stack.engine.marks(claimed)
        await stack.engine.say(claimed, "b", finish=LENGTH)
        assert texts(await read(again)) == {0: "ab"}
        await again.aclose()


async def test_a_reader_whose_stream_went_to_another_gateway_is_told() -> None:
    stack = Stack()
    first, second = stack.gateway(), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "a")
        await read(running, until=1)
        again = await there.resume("cmpl-1", "1", CALLER)
        await stack.engine.obey_attach(claimed)
        with pytest.raises(Conflict):
            await read(running)
        await running.aclose()
        await stack.engine.say(claimed, "b", finish=LENGTH)
        assert texts(await read(again)) == {0: "b"}
        await again.aclose()


async def test_a_queued_request_taken_up_elsewhere_is_delivered_there() -> None:
    stack = Stack()
    first, second = stack.gateway(resume_grace_s=30), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x"))
        await running.aclose()
        again = await there.resume("cmpl-1", "", CALLER)
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        await stack.engine.obey_attach(claimed, by="gateway-b")
        await stack.engine.say(claimed, "c", finish=LENGTH)
        assert texts(await read(again)) == {0: "abc"}
        await again.aclose()


async def test_a_finished_request_is_replayed_from_its_log_at_any_gateway() -> None:
    stack = Stack()
    second = stack.gateway("gateway-b")
    async with stack.gateway().running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x", "y", sampling=SamplingCall(max_tokens=9)))
        for claimed in await stack.engine.claim(2):
            await stack.engine.say(claimed, "abc", log=False, finish=LENGTH)
            assert await stack.engine.end(claimed, {0: LENGTH}, since=[0])
        assert texts(await read(running)) == {0: "abc", 1: "abc"}
        await running.aclose()
        again = await there.resume("cmpl-1", "1,3", CALLER)
        events = await read(again)
        await again.aclose()
    assert texts(events) == {0: "bc", 1: ""}
    assert finishes(events) == {0: LENGTH, 1: LENGTH}
    assert done(events).usage.prompt_tokens == 2
    assert second.value("headrace_gateway_resumes_total", source="log") == 1


@pytest.mark.parametrize("gateway", ["gateway-a", "gateway-b"])
async def test_a_cursor_behind_the_end_of_a_finished_call_is_refused(gateway: str) -> None:
    stack = Stack()
    first, second = stack.gateway("gateway-a", resume_grace_s=30), stack.gateway("gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x", "y", sampling=SamplingCall(max_tokens=9)))
        for claimed, text in zip(await stack.engine.claim(2), ("abc", "a"), strict=True):
            await stack.engine.say(claimed, text, log=False, finish=LENGTH)
            assert await stack.engine.end(claimed, {0: LENGTH}, since=[0])
        await read(running)
        await running.aclose()
        service = here if gateway == "gateway-a" else there
        for wrong, fact in (("4", "after 3 tokens"), ("3,2", "after 1 tokens")):
            with pytest.raises(InvalidRequest, match=fact) as caught:
                await service.resume("cmpl-1", wrong, CALLER)
            assert caught.value.param == "after"
        again = await service.resume("cmpl-1", "3", CALLER)
        assert texts(await read(again)) == {0: "", 1: ""}
        assert again.cursor == "3,1"
        await again.aclose()


async def test_resuming_what_never_was_is_not_found_and_bad_cursors_are_named() -> None:
    stack = Stack()
    async with stack.gateway().running() as service:
        await stack.engine.appear()
        with pytest.raises(RequestNotFound):
            await service.resume("cmpl-none", "", CALLER)
        running = await service.start(call("x"))
        for wrong in ("a", "-1", "1,2", "1.5", "9" * 12):
            with pytest.raises(InvalidRequest) as caught:
                await service.resume("cmpl-1", wrong, CALLER)
            assert caught.value.param == "after"
        await running.aclose()


def test_a_cursor_is_one_number_for_all_choices_or_one_for_each() -> None:
    assert [place(parse_cursor(""))(i) for i in range(2)] == [0, 0]
    assert [place(parse_cursor("12"))(i) for i in range(2)] == [12, 12]
    assert [place(parse_cursor("12,9"))(i) for i in range(3)] == [12, 9, 0]


def test_an_edge_note_survives_its_journey_and_a_strange_one_is_no_note() -> None:
    note = EdgeNote(
        kind="chat",
        prompts=3,
        stop=("a", "b"),
        stop_token_ids=(7,),
        min_tokens=2,
        include_stop=False,
        logprobs=None,
        grace_s=60.0,
    )
    assert EdgeNote.decode(note.encode()) == note
    earlier = json.loads(note.encode())
    del earlier["grace_s"], earlier["traceparent"]  # of a version that had neither
    assert EdgeNote.decode(json.dumps(earlier).encode()) == replace(note, grace_s=0.0)
    for grace in ("soon", None, True, -1, 1e999, [60]):  # not of ours
        damaged = json.dumps({**json.loads(note.encode()), "grace_s": grace}).encode()
        assert EdgeNote.decode(damaged) == replace(note, grace_s=0.0)
    for name in ("stop", "stop_token_ids"):
        assert EdgeNote.decode(json.dumps({**json.loads(note.encode()), name: 7}).encode()) is None
    assert note.hidden == {7}
    for strange in (b"", b"{}", b"[]", b'{"version": 99}', b'{"version": 1, "kind": "chat"}'):
        assert EdgeNote.decode(strange) is None


def test_records_of_one_prompt_carry_the_calls_id_and_those_of_several_a_number() -> None:
    assert record_ids("cmpl-1", 1) == ["cmpl-1"]
    assert record_ids("cmpl-1", 2) == ["cmpl-1.0", "cmpl-1.1"]


async def closed(gateway: Gateway) -> bool:
    """Whether the gateway has no open call left."""
    return gateway.value("headrace_gateway_requests_open") == 0


async def test_a_gateway_that_looks_after_a_stream_does_not_take_it_back() -> None:
    stack = Stack()
    slow = LateAttach(stack.broker)
    first = Gateway(slow, resume_grace_s=30)
    second = Gateway(MemoryGatewayWire(stack.broker), name="gateway-b")
    async with first.running() as service, second.running() as other:
        await stack.engine.appear()
        running = await service.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        assert texts(await read(running, until=1)) == {0: "ab"}
        await running.aclose()
        await asyncio.wait_for(slow.on_its_way.wait(), 20)
        resumed = await other.resume(running.id, "2", call("x").caller)
        await stack.engine.obey_attach(claimed)
        slow.through.set()
        await eventually(lambda: closed(first))  # it has seen whose the stream is now
        await stack.engine.say(claimed, "cd", finish=FinishReason.LENGTH)
        assert texts(await read(resumed)) == {0: "cd"}
        await resumed.aclose()


class StaleState(MemoryGatewayWire):
    """While an attach is on its way, whoever asks for a state gets what it was before."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._attaching = False
        self._asked = asyncio.Event()
        self._attached = asyncio.Event()

    async def request_state(self, request: str) -> RequestState | None:
        state = await super().request_state(request)
        if self._attaching:
            self._asked.set()
            await self._attached.wait()
        return state

    async def attach(
        self, request: str, gateway: str, slot: int, first: int, *, keeping: bool = False
    ) -> Lease | None:
        self._attaching = True
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):  # the gateway looks after sessions more often
                await self._asked.wait()
        self._attaching = False
        lease = await super().attach(request, gateway, slot, first, keeping=keeping)
        asyncio.get_running_loop().call_later(0.05, self._attached.set)
        return lease


async def test_a_stream_that_is_taken_up_slowly_is_not_taken_for_taken_away() -> None:
    stack = Stack()
    first = stack.gateway(resume_grace_s=30)
    second = Gateway(StaleState(stack.broker), name="gateway-b")
    async with first.running() as service, second.running() as other:
        await stack.engine.appear()
        running = await service.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        assert texts(await read(running, until=1)) == {0: "ab"}
        await running.aclose()
        resumed = await other.resume(running.id, "2", call("x").caller)
        await stack.engine.obey_attach(claimed)
        await asyncio.sleep(0.2)
        await stack.engine.say(claimed, "cd", finish=FinishReason.LENGTH)
        assert texts(await read(resumed)) == {0: "cd"}
        await resumed.aclose()


@pytest.mark.parametrize("noticed", [False, True])
async def test_the_newest_reader_counts_also_where_the_stream_had_been_before(
    noticed: bool,
) -> None:
    """``noticed``: the first gateway knows by then that another one had taken the stream up."""
    stack = Stack()
    first = stack.gateway(silence_check_s=0.2 if noticed else 60)
    second = stack.gateway("gateway-b")
    async with stack.claimed(first) as (service, running, claimed), second.running() as other:
        await stack.engine.say(claimed, "ab")
        assert texts(await read(running, until=1)) == {0: "ab"}
        elsewhere = await other.resume(running.id, "2", call("x").caller)
        await stack.engine.obey_attach(claimed)
        if noticed:
            with pytest.raises(Conflict, match="another gateway"):
                await read(running)  # whose reader stays
        again = await service.resume(running.id, "2", call("x").caller)
        await stack.engine.obey_attach(claimed, by="gateway-a")
        await stack.engine.say(claimed, "cd", finish=FinishReason.LENGTH)
        assert texts(await read(again)) == {0: "cd"}
        with pytest.raises(Conflict, match="another gateway"):
            await read(elsewhere)
        for each in (running, elsewhere, again):
            await each.aclose()
        await eventually(lambda: closed(first))
        assert not await stack.engine.marks(claimed)


async def test_a_call_that_was_taken_up_elsewhere_can_still_be_cancelled_here() -> None:
    stack = Stack()
    first, second = stack.gateway(), stack.gateway("gateway-b")
    async with stack.claimed(first) as (service, running, claimed), second.running() as other:
        elsewhere = await other.resume(running.id, "", call("x").caller)
        await stack.engine.obey_attach(claimed)
        with pytest.raises(Conflict, match="another gateway"):
            await read(running)
        assert await service.cancel(running.id, call("x").caller)
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
        for each in (running, elsewhere):
            await each.aclose()


async def test_all_prompts_of_a_call_go_on_where_it_was_taken_up() -> None:
    stack = Stack()
    first, second = stack.gateway(), stack.gateway("gateway-b")
    async with first.running() as service, second.running() as other:
        await stack.engine.appear()
        running = await service.start(call("x", "y"))
        claimed = await stack.engine.claim(2)
        elsewhere = await other.resume(running.id, "", call("x").caller)
        for each in claimed:
            await stack.engine.obey_attach(each)
        with pytest.raises(Conflict, match="another gateway"):
            await read(running)
        for each in claimed:
            assert not await stack.engine.marks(each)
            await stack.engine.say(each, each.record.id[-1], finish=FinishReason.LENGTH)
        assert texts(await read(elsewhere)) == {0: "0", 1: "1"}
        for each in (running, elsewhere):
            await each.aclose()


class WithoutEngines(MemoryGatewayWire):
    """From some time on the server goes away when it is asked for engines, and no sooner."""

    away = False

    async def engines(self, model: str) -> Sequence[EngineInfo]:
        if self.away:
            raise TransportUnavailable("it has just gone away")
        return await super().engines(model)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_server_that_goes_away_before_it_names_engines_does_not_end_a_resume(
    where: str,
) -> None:
    stack = Stack()
    leaving = WithoutEngines(stack.broker)
    wires = [leaving, MemoryGatewayWire(stack.broker)]
    if where == "elsewhere":
        wires.reverse()
    first, second = Gateway(wires[0], resume_grace_s=30), Gateway(wires[1], name="gateway-b")
    async with first.running() as here, second.running() as there:
        await stack.engine.appear()
        running = await here.start(call("x"))
        [claimed] = await stack.engine.claim()
        await stack.engine.say(claimed, "ab")
        await read(running, until=1)
        await running.aclose()
        leaving.away = True
        again = await there.resume("cmpl-1", "", CALLER)
        await stack.engine.obey_attach(claimed)
        if where == "here":  # back where it is open still, and which has lost it by now
            await again.aclose()
            again = await here.resume("cmpl-1", "", CALLER)
            await stack.engine.obey_attach(claimed, by="gateway-a")
        await stack.engine.say(claimed, "c", finish=LENGTH)
        assert texts(await read(again)) == {0: "abc"}
        await again.aclose()


class Unreadable(MemoryGatewayWire):
    """States of requests get damaged at some time."""

    damaged_now = False

    async def request_state(self, request: str) -> RequestState | None:
        if self.damaged_now:
            raise CommandFailed("a request's state cannot be read")
        return await super().request_state(request)


async def test_a_damaged_state_keeps_nobody_from_what_is_here_and_nothing_running_for_ever() -> (
    None
):
    stack = Stack()
    wire = Unreadable(stack.broker)
    gateway = Gateway(wire, resume_grace_s=0.2)
    async with stack.claimed(gateway) as (service, running, claimed):
        await stack.engine.say(claimed, "ab")
        await read(running, until=1)
        wire.damaged_now = True
        again = await service.resume("cmpl-1", "", CALLER)
        assert texts(await read(again, until=1)) == {0: "ab"}
        for each in (running, again):
            await each.aclose()
        assert (await stack.engine.await_mark(claimed)).reason == FinishReason.CANCELLED
