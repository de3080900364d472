"""Who comes back while the server is slow to answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import LogEntry
from headrace_gateway.errors import BackendUnavailable
from headrace_gateway.inference.running import Running
from headrace_gateway.inference.service import TICK_S, InferenceService
from headrace_kit.clock import Clock
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import Claimed, RequestState
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.waiting import PATIENCE_S, eventually
from support.wire import CALLER, Gateway, Stack, call, finishes, read, texts

LENGTH = FinishReason.LENGTH


class HeldState(MemoryGatewayWire):
    """The first question for a state after ``hold`` waits until it is let through, others do not."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._next = False
        self.on_its_way = asyncio.Event()
        self.through = asyncio.Event()

    def hold(self) -> None:
        """Holds the next one."""
        self._next = True

    async def request_state(self, request: str) -> RequestState | None:
        if self._next:
            self._next = False
            self.on_its_way.set()
            await self.through.wait()
        return await super().request_state(request)


@dataclass(frozen=True, slots=True)
class Scene:
    """A call whose only request the engine has claimed, at a gateway whose server can be slow."""

    stack: Stack
    wire: HeldState
    gateway: Gateway
    service: InferenceService
    running: Running
    claimed: Claimed

    async def come_back(self) -> asyncio.Task[Running]:
        """A resume that waits for the server's answer."""
        self.wire.hold()
        coming = asyncio.create_task(self.service.resume("cmpl-1", "", CALLER))
        await asyncio.wait_for(self.wire.on_its_way.wait(), PATIENCE_S)
        return coming


@asynccontextmanager
async def scene(
    clock: Clock | None = None, *, grace_s: float = 30, silence_s: float = 60
) -> AsyncGenerator[Scene]:
    stack = Stack(clock)
    wire = HeldState(stack.broker)
    gateway = Gateway(wire, clock=clock, resume_grace_s=grace_s, silence_check_s=silence_s)
    async with stack.claimed(gateway) as (service, running, claimed):
        yield Scene(stack, wire, gateway, service, running, claimed)


async def test_who_comes_back_in_its_grace_is_waited_for() -> None:
    clock = FakeClock()
    async with scene(clock, grace_s=0.3) as at:
        await at.running.aclose()
        coming = await at.come_back()
        clock.advance(0.6)  # its grace is long over
        await asyncio.sleep(3 * TICK_S)
        at.wire.through.set()
        again = await coming
        await at.stack.engine.say(at.claimed, "ab", finish=LENGTH)
        events = await read(again)
        assert (texts(events), finishes(events)) == ({0: "ab"}, {0: LENGTH})
        await again.aclose()
    assert not await at.stack.engine.marks(at.claimed)


async def test_who_comes_back_in_its_grace_and_goes_at_once_is_not_waited_for() -> None:
    clock = FakeClock()
    async with scene(clock, grace_s=0.3) as at:
        await at.running.aclose()
        coming = await at.come_back()
        coming.cancel()
        clock.advance(0.6)
        assert (await at.stack.engine.await_mark(at.claimed)).reason == FinishReason.CANCELLED


async def test_a_resume_does_not_wait_for_anothers_answer() -> None:
    async with scene() as at:
        other = await at.service.start(call("y", request_id="cmpl-2"))
        coming = await at.come_back()
        again = await asyncio.wait_for(at.service.resume("cmpl-2", "", CALLER), PATIENCE_S)
        assert not coming.done()
        at.wire.through.set()
        for each in (at.running, other, again, await coming):
            await each.aclose()


async def test_a_stream_that_went_elsewhere_while_it_is_taken_back_is_taken_up() -> None:
    async with scene(silence_s=0.2) as at:
        await at.stack.engine.say(at.claimed, "ab")
        await at.running.aclose()
        coming = await at.come_back()
        await MemoryGatewayWire(at.stack.broker).attach("cmpl-1", "gateway-b", 7, 0)
        await eventually(lambda: closed(at.gateway))  # it has seen that
        await asyncio.sleep(0.3)  # and would forget what nobody comes for
        at.wire.through.set()
        again = await coming
        await at.stack.engine.obey_attach(at.claimed, by="gateway-a")
        await at.stack.engine.say(at.claimed, "cd", finish=LENGTH)
        assert texts(await read(again)) == {0: "abcd"}
        await again.aclose()


class NoLog(MemoryGatewayWire):
    """The server goes away once it has said who has a request."""

    asked = 0

    async def read_log(self, request: str, after: str = "0-0") -> Sequence[tuple[str, LogEntry]]:
        self.asked += 1
        raise TransportUnavailable("away")


async def test_a_call_that_cannot_be_taken_up_leaves_nothing_behind() -> None:
    stack = Stack()
    wire = NoLog(stack.broker)
    async with stack.claimed(stack.gateway()) as (_, running, _):
        other = Gateway(wire, name="gateway-b", silence_check_s=0.1)
        async with other.running() as there:
            for _ in range(3):
                with pytest.raises(BackendUnavailable):
                    await there.resume("cmpl-1", "", CALLER)
            asked = wire.asked
            await asyncio.sleep(4 * TICK_S)
            assert wire.asked == asked, "nobody looks after what was not taken up"
        await running.aclose()


async def closed(gateway: Gateway) -> bool:
    """Whether the gateway has no open call left."""
    return gateway.value("headrace_gateway_requests_open") == 0
