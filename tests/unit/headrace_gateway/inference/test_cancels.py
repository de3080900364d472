"""Marks get to the server, sooner or later."""

from __future__ import annotations

import asyncio

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark
from headrace_gateway.inference.cancels import Cancels, mark_of
from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Registry
from headrace_transport.errors import TransportUnavailable
from headrace_transport.memory import MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker


class Wire(MemoryGatewayWire):
    """Notes marks; refuses them while the server is away."""

    def __init__(self) -> None:
        super().__init__(MemoryBroker())
        self.away = False
        self.marks: list[tuple[str, CancelMark]] = []

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        """As the real one."""
        if self.away:
            raise TransportUnavailable("away")
        self.marks.append((request, mark))
        return True


class Held(Wire):
    """Each mark waits for a gate of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    async def cancel(self, model: str, request: str, mark: CancelMark) -> bool:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return await super().cancel(model, request, mark)


async def settle() -> None:
    """Lets spawned jobs run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_mark_is_sent_at_once_and_counted_by_cause() -> None:
    wire, metrics = Wire(), GatewayMetrics(Registry("gateway"))
    async with Tasks() as tasks:
        cancels = Cancels(wire, tasks, metrics)
        cancels.ask("m", "r", FinishReason.STOP, cause="stop_string", choice=0)
        await settle()
    [(request, mark)] = wire.marks
    assert request == "r"
    assert (mark.reason, mark.choice) == (FinishReason.STOP, 0)
    assert b'cancels_total{cause="stop_string"} 1.0' in metrics.registry.exposition()


async def test_marks_of_several_choices_wait_beside_each_other_and_are_sent_once() -> None:
    wire = Wire()
    async with Tasks() as tasks:
        cancels = Cancels(wire, tasks, GatewayMetrics(Registry("gateway")))
        wire.away = True
        for choice in (0, 1, 1, None):
            cancels.ask("m", "r", FinishReason.CANCELLED, cause="request", choice=choice)
        await settle()
        assert cancels.pending == 3
        cancels.retry()
        await settle()
        assert cancels.pending == 3
        wire.away = False
        cancels.retry()
        await settle()
        assert cancels.pending == 0
    assert len(wire.marks) == 3


async def test_one_can_wait_until_a_mark_is_sent_but_not_for_ever() -> None:
    wire = Wire()
    async with Tasks() as tasks:
        cancels = Cancels(wire, tasks, GatewayMetrics(Registry("gateway")))
        cancels.ask("m", "r", FinishReason.CANCELLED, cause="request")
        await cancels.sent(["r", "unknown"], timeout_s=5)
        assert len(wire.marks) == 1
        wire.away = True
        cancels.ask("m", "r", FinishReason.CANCELLED, cause="request")
        await cancels.sent(["r"], timeout_s=5)  # put off: no reason to wait any longer
        assert cancels.pending == 1


async def test_who_waits_for_a_mark_waits_for_the_newest() -> None:
    wire = Held()
    async with Tasks() as tasks:
        cancels = Cancels(wire, tasks, GatewayMetrics(Registry("gateway")))
        cancels.ask("m", "r", FinishReason.STOP, cause="stop_string", choice=0)
        await settle()
        cancels.ask("m", "r", FinishReason.CANCELLED, cause="request")
        await settle()
        first, second = wire.gates
        first.set()
        await settle()
        waiting = asyncio.create_task(cancels.sent(["r"], timeout_s=5))
        await settle()
        assert not waiting.done()
        second.set()
        await waiting
    assert len(wire.marks) == 2


async def test_marks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace_gateway.inference.cancels.MAX_PENDING", 2)
    wire = Wire()
    wire.away = True
    async with Tasks() as tasks:
        cancels = Cancels(wire, tasks, GatewayMetrics(Registry("gateway")))
        for number in range(5):
            cancels.ask("m", f"r{number}", FinishReason.CANCELLED, cause="request")
        await settle()
        assert cancels.pending == 2


def test_a_mark_of_everything_names_no_choice() -> None:
    mark = mark_of(FinishReason.CANCELLED)
    assert not mark.HasField("choice")
    assert not mark.HasField("at")
