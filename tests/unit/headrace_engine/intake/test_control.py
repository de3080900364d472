"""Control entries: nudges, attaches, drains; each may come twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import (
    Attach,
    CancelMark,
    CancelNudge,
    Control,
    Drain,
    Frame,
)
from headrace_transport.interface import FrameId
from headrace_transport.memory_broker import MemoryBroker
from structlog.testing import capture_logs
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


def nudge(request: str) -> Control:
    """A nudge about a request."""
    return Control(version=WIRE_VERSION, cancel=CancelNudge(id=request))


@pytest.mark.rule("cancel.mark-is-truth")
async def test_a_nudge_without_a_mark_cancels_nothing() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record())
        await bench.pushed(1)
        bench.broker.control("engine-1").append(nudge("r1"))
        bench.broker.control("engine-1").append(nudge("stranger"))
        await asyncio.sleep(0.05)

        assert bench.fake.cancels == []


@pytest.mark.rule("control.explicit-id")
async def test_an_entry_of_another_version_or_kind_is_passed_over() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    control = bench.broker.control("engine-1")
    with capture_logs() as logs:
        async with bench.running():
            control.append(Control(version=WIRE_VERSION + 1, drain=Drain()))
            control.append(Control(version=WIRE_VERSION))
            control.append(Control(version=WIRE_VERSION, drain=Drain(grace_ms=10)))
            await eventually(lambda: bool(bench.drains))

    assert bench.drains == [0.01]
    assert bench.value("headrace_engine_foreign_records_total", kind="control") == 1
    events = [entry["event"] for entry in logs]
    assert "wire.foreign_version" in events
    assert "control.unknown_kind" in events


async def test_an_attached_gateway_gets_what_the_log_lacks_from_where_it_asks() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    record = make_record(n=2, max_new_tokens=100, slot=9)
    record.sampling.logprobs = 0
    async with bench.running():
        await bench.submit(record)
        await bench.pushed(1)
        bench.step(16)
        await eventually(lambda: bench.logged("r1", 32))
        bench.step(3)
        await eventually(lambda: bench.value("headrace_engine_published_tokens_total") == 38)
        await bench.gateway.attach("r1", "other", 70, 17)
        await eventually(lambda: len(bench.broker.out("other")) > 0)

    (frame,) = await bench.frames("other")
    assert list(frame.slots) == [70, 71]
    assert list(frame.firsts) == [17, 17]
    assert list(frame.counts) == [2, 2]
    assert list(frame.tokens) == [
        token_of(1, choice, index) for choice in (0, 1) for index in (17, 18)
    ]
    assert list(frame.logged) == [16, 16]
    assert [list(item.chosen) for item in frame.logprobs] == [[-17.0, -18.0]] * 2


async def test_an_attach_to_slots_that_are_none_is_passed_over() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(n=2, max_new_tokens=100, slot=9))
        await bench.pushed(1)
        await bench.gateway.attach("r1", "other", 2**32 - 1, 0)
        await bench.gateway.attach("r1", "another", 2**32 - 2, 0)
        await eventually(lambda: len(bench.broker.out("another")) > 0)

    (frame,) = await bench.frames("another")
    assert list(frame.slots) == [2**32 - 2, 2**32 - 1]
    assert not await bench.frames("other")


async def test_an_attached_gateway_is_told_of_choices_that_have_ended() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(n=2, max_new_tokens=100, slot=9))
        await bench.pushed(1)
        bench.step(2)
        mark = CancelMark(reason=codes_pb2.FINISH_REASON_STOP, choice=0)
        await bench.gateway.cancel("m", "r1", mark)
        await eventually(lambda: bool(bench.fake.cancels))
        bench.step()
        await eventually(lambda: bench.intake.state().unpublished_tokens == 0)
        for count in (1, 2):
            await bench.gateway.attach("r1", "other", 70, 0)
            await eventually(lambda count=count: len(bench.broker.out("other")) == count)

        for frame in await bench.frames("other"):
            assert [(finish.row, finish.reason) for finish in frame.finishes] == [
                (0, FinishReason.STOP)
            ]


async def test_an_attach_to_a_request_that_is_not_here_changes_nothing() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    attach = Attach(id="stranger", gateway="other", slot=1)
    async with bench.running():
        bench.broker.control("engine-1").append(Control(version=WIRE_VERSION, attach=attach))
        bench.broker.control("engine-1").append(nudge("stranger"))
        await asyncio.sleep(0.05)

        assert await bench.frames("other") == []


async def test_an_attach_from_beyond_what_was_published_is_answered_from_there() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=100, slot=9))
        await bench.pushed(1)
        bench.step(2)
        await eventually(lambda: bench.value("headrace_engine_published_tokens_total") == 2)
        await bench.gateway.attach("r1", "other", 70, 50)
        await eventually(lambda: len(bench.broker.out("other")) > 0)

    (frame,) = await bench.frames("other")
    assert (list(frame.firsts), list(frame.counts)) == ([2], [0])


async def test_a_request_that_is_lost_while_its_attach_waits_sends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    gate, on_its_way, real = asyncio.Event(), asyncio.Event(), bench.wire.publish

    async def slow(frames: Mapping[str, Frame]) -> Mapping[str, FrameId]:
        on_its_way.set()
        await gate.wait()
        return await real(frames)

    monkeypatch.setattr(bench.wire, "publish", slow)
    with capture_logs() as logs:
        async with bench.running():
            await bench.submit(make_record(max_new_tokens=100, slot=9))
            await bench.pushed(1)
            bench.step()
            await on_its_way.wait()  # a frame is under way, and the attach behind it
            await bench.gateway.attach("r1", "other", 70, 0)
            await asyncio.sleep(0.05)
            await bench.wire.release("m", "engine-1", {"r1": 1})
            await bench.intake.keeper.renew({"r1": 1})
            gate.set()
            await asyncio.sleep(0.05)

    assert bench.value("headrace_engine_requests_let_go_total", why="lost") == 1
    assert "request.attached" not in [entry["event"] for entry in logs]
    assert not await bench.frames("other")
