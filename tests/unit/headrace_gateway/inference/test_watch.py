"""Gauges of models, and the sweep that one gateway does for all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace_contracts.codes import FinishReason
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import EngineInfo
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from structlog.testing import capture_logs
from support.waiting import eventually
from support.wire import MODEL, Gateway, ScriptedEngine, Stack, call
from support.wires import record


async def test_a_queue_without_engines_is_shown_and_goes_with_the_server() -> None:
    stack = Stack()
    gateway = stack.gateway(scale_from_zero=True)
    async with gateway.running() as service:
        await stack.engine.appear()
        await stack.engine.leave()
        running = await service.start(call("x"))
        await eventually(lambda: shows(gateway, "headrace_gateway_queue_depth", 1))
        assert await shows(gateway, "headrace_gateway_engines_ready", 0)

        await stack.engine.appear()
        await stack.engine.claim()
        await eventually(lambda: shows(gateway, "headrace_gateway_engines_ready", 1))
        assert await shows(gateway, "headrace_gateway_queue_depth", 0)

        stack.broker.up = False
        await eventually(lambda: shows(gateway, "headrace_gateway_queue_depth", None))
        assert await shows(gateway, "headrace_gateway_engines_ready", None)
        stack.broker.up = True
        await eventually(lambda: shows(gateway, "headrace_gateway_queue_depth", 0))
        await running.aclose()


async def test_the_request_of_a_gateway_that_died_ends_in_a_queue_without_engines() -> None:
    stack = Stack()
    await stack.engine.appear()
    await stack.engine.leave()
    wire = MemoryGatewayWire(stack.broker)
    left = record("left", gateway="gateway-dead", model=MODEL)
    await wire.submit(left, max_queued=9)
    await wire.leave_gateway("gateway-dead")
    async with stack.gateway(lease_s=0.3).running(), stack.gateway("other", lease_s=0.3).running():

        async def ended() -> bool:
            state = await wire.request_state("left")
            return state is not None and state.finish is FinishReason.CANCELLED

        await eventually(ended)


async def test_a_record_that_cannot_be_read_hides_its_models_gauges_and_ends_nothing() -> None:
    damaged, sweeps = asyncio.Event(), asyncio.Semaphore(0)
    other = "other"

    class Damaged(MemoryGatewayWire):
        async def engines(self, model: str) -> Sequence[EngineInfo]:
            if damaged.is_set() and model == MODEL:
                raise CommandFailed("the engine e-1 cannot be read")
            return await super().engines(model)

        async def reap(self, model: str) -> None:
            if model == other:
                sweeps.release()
                return
            raise CommandFailed("a model's card cannot be read")

    stack = Stack()
    gateway = Gateway(Damaged(stack.broker), lease_s=0.3)
    for model in (MODEL, other, "zoo"):  # by name there is one on each side of it
        await ScriptedEngine(MemoryEngineWire(stack.broker), f"engine-{model}", model).appear()
    with capture_logs() as said:
        async with gateway.running(), asyncio.timeout(30):
            await eventually(lambda: shows(gateway, "headrace_gateway_engines_ready", 1))
            damaged.set()
            await eventually(lambda: shows(gateway, "headrace_gateway_engines_ready", None))
            assert await shows(gateway, "headrace_gateway_queue_depth", None)
            assert await shows(gateway, "headrace_gateway_engines_ready", 1, other)
            assert await shows(gateway, "headrace_gateway_engines_ready", 1, "zoo")
            damaged.clear()
            await eventually(lambda: shows(gateway, "headrace_gateway_engines_ready", 1))
            for _ in range(3):
                await sweeps.acquire()
    events = [each["event"] for each in said if each["log_level"] == "error"]
    # the sweep misses two of the models
    assert sorted(events) == ["gauges.missed", "sweep.missed", "sweep.missed"]


async def shows(gateway: Gateway, name: str, value: float | None, model: str = MODEL) -> bool:
    """Whether the model's gauge is there with that value; None: whether it is not there."""
    await asyncio.sleep(0)
    for family in gateway.metrics.registry.families():
        for sample in family.samples:
            if sample.name == name and sample.labels == {"model": model}:
                return sample.value == value
    return value is None
