"""What the engines tell, as a table, and ending one of them."""

from __future__ import annotations

import asyncio

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.fleet import Fleet, drain, gone, picture
from headrace_cli.state import StateDir
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_transport.interface import EngineInfo
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock

IDS = ("pod-1-00000001", "pod-12-00000002")


class Deployment:
    """Two engines of one model."""

    def __init__(self) -> None:
        broker = MemoryBroker(clock=FakeClock())
        self.wire = MemoryGatewayWire(broker)
        self.engine = MemoryEngineWire(broker)

    async def begin(self) -> Deployment:
        await self.engine.put_card(ModelCard(version=1, model="m"))
        for running, process in enumerate(IDS):
            info = EngineInfo(process, "m", "ready", running, 3, 60, 64)
            await self.engine.beat_engine(info, ttl_ms=1000)
        return self


@pytest.fixture
async def deployment() -> Deployment:
    return await Deployment().begin()


async def test_the_picture_has_every_engine_with_its_load(deployment: Deployment) -> None:
    lines = (await picture(deployment.wire)).splitlines()
    assert lines[0].split() == ["m", "queued", "0", "running", "1"]
    assert lines[2].split() == [IDS[0], "ready", "0", "3", "4", "of", "64", "(6", "%)"]
    assert lines[3].split()[:3] == [IDS[1], "ready", "1"]


async def test_models_without_engines_and_servers_without_models_are_shown_as_such() -> None:
    broker = MemoryBroker(clock=FakeClock())
    wire = MemoryGatewayWire(broker)
    assert "No model" in await picture(wire)
    await MemoryEngineWire(broker).put_card(ModelCard(version=1, model="m"))
    assert "no engine" in await picture(wire)


@pytest.mark.parametrize("name", [IDS[0], "pod-1-"])
async def test_an_engine_is_told_to_drain_by_its_id_or_its_beginning(
    deployment: Deployment, name: str
) -> None:
    assert await drain(deployment.wire, name, grace_s=1.5) == IDS[0]
    ((_, control),) = await deployment.engine.read_control(IDS[0], "0-0", block_ms=1)
    assert control is not None
    assert control.drain.grace_ms == 1500
    assert await deployment.engine.read_control(IDS[1], "0-0", block_ms=1) == []


async def test_waiting_for_an_engine_ends_when_it_has_left(deployment: Deployment) -> None:
    waiting = asyncio.create_task(gone(deployment.wire, IDS[0], within_s=60))
    await asyncio.sleep(0)
    assert not waiting.done()
    await deployment.engine.leave_engine(EngineInfo(IDS[0], "m", "draining", 0, 0, 64, 64))
    async with asyncio.timeout(20):
        await waiting


async def test_an_engine_that_stays_is_not_waited_for_for_ever(deployment: Deployment) -> None:
    with pytest.raises(CommandFailed, match="within 0 s: it is ready, with 0 running and 3"):
        await gone(deployment.wire, IDS[0], within_s=0)


async def test_an_unknown_or_ambiguous_engine_is_not_drained(deployment: Deployment) -> None:
    with pytest.raises(CommandFailed, match="no engine 'pod-3'"):
        await drain(deployment.wire, "pod-3", grace_s=None)
    with pytest.raises(CommandFailed, match="no engine ''"):
        await drain(deployment.wire, "", grace_s=None)
    with pytest.raises(CommandFailed, match="pod-1-00000001, pod-12-00000002"):
        await drain(deployment.wire, "pod-1", grace_s=None)


def test_without_a_stack_or_a_server_there_is_nothing_to_show(tmp_path: object) -> None:
    with pytest.raises(CommandFailed, match="No stack runs here"):
        Fleet.find(None, StateDir.locate(None, {"HOME": str(tmp_path)}), {})
    named = Fleet.find(
        "redis://x:1/0", StateDir.locate(None, {}), {"HEADRACE_GATEWAY_REDIS_PASSWORD": "p"}
    )
    assert (named.redis_url, named.access.password) == ("redis://x:1/0", "p")
    assert "'p'" not in repr(named)
