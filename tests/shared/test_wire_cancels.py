"""Cancels, in every state."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import Frame
from headrace_transport.interface import FIRST_FRAME
from support.wires import (
    GATEWAY,
    LEASE_MS,
    MODEL,
    SHORT_MS,
    SOON_MS,
    Wires,
    claim,
    entry,
    finish,
    frame,
    mark,
    record,
)


async def test_queued_request_ends_at_once_and_its_gateway_is_told(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1", n=2), max_queued=2)
    await gateway.submit(record("r2"), max_queued=2)

    assert await gateway.cancel(MODEL, "r1", mark())

    assert await gateway.queue_depth(MODEL) == 1
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.CANCELLED)
    ((terminal,)) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert isinstance(terminal.item, Frame)
    assert list(terminal.item.slots) == [10, 11]
    assert list(terminal.item.counts) == [0, 0]
    assert [f.reason for f in terminal.item.finishes] == [FinishReason.CANCELLED] * 2
    assert terminal.item.finishes[0].code == Code.CANCELLED
    # its place is free, and the claim skips what is left of it
    await gateway.submit(record("r3"), max_queued=2)
    assert set(await claim(engine)) == {"r2", "r3"}


async def test_running_request_is_marked_and_its_owner_nudged(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=2)
    await claim(engine)
    assert await engine.cancels(MODEL, ["r1"]) == {}

    assert await gateway.cancel(MODEL, "r1", mark())

    ((_, nudge),) = await engine.read_control("e-1", "0-0", block_ms=1000)
    assert nudge is not None
    assert nudge.cancel.id == "r1"
    for wire in (gateway, engine):
        assert await wire.cancels(MODEL, ["r1", "r2"]) == {"r1": [mark()]}
    for _ in range(2):
        renewed = await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
        assert renewed.cancelled == {"r1": [mark()]}
    await finish(engine, "r1")
    assert await engine.cancels(MODEL, ["r1"]) == {}


async def test_each_choice_has_its_own_mark(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1", n=3), max_queued=2)
    first = mark(FinishReason.STOP, choice=2)
    # a choice can be marked before the request runs
    await gateway.cancel(MODEL, "r1", first)
    assert await gateway.queue_depth(MODEL) == 1
    taken = (await claim(engine))["r1"]
    assert list(taken.cancels) == [first]
    second = mark(FinishReason.STOP, choice=0)
    await gateway.cancel(MODEL, "r1", second)
    renewed = await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
    assert renewed.cancelled == {"r1": [second, first]}
    whole = mark()
    await gateway.cancel(MODEL, "r1", whole)
    renewed = await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
    assert renewed.cancelled == {"r1": [whole, second, first]}


async def test_stop_of_a_single_choice_is_a_stop_of_the_request(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=2)
    await claim(engine)
    await engine.append_log("e-1", "r1", 1, entry([1, 2]))
    await engine.release(MODEL, "e-1", {"r1": 1})
    await gateway.cancel(MODEL, "r1", mark(FinishReason.STOP, choice=0))
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.STOP)
    assert state.usage is not None
    assert state.usage.completion_tokens == 2
    assert await claim(engine) == {}


@pytest.mark.parametrize("when", ["unknown", "finished", "flushed"])
async def test_what_has_ended_cannot_be_cancelled(wires: Wires, when: str) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    if when != "unknown":
        await gateway.submit(record("r1"), max_queued=2)
        await claim(engine)
        await finish(engine, "r1")
    if when == "flushed":
        await wires.flush()
    assert not await gateway.cancel(MODEL, "r1", mark())
    assert await engine.cancels(MODEL, ["r1"]) == {}


async def test_cancelled_request_of_a_dead_engine_ends_at_its_take_over(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=2)
    await claim(engine, lease_ms=SHORT_MS)
    await engine.publish({GATEWAY: frame([1, 2, 3])})
    await gateway.cancel(MODEL, "r1", mark())
    await wires.pass_ms(2 * SHORT_MS)

    assert await claim(engine, "e-2") == {}

    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.CANCELLED)
    assert state.usage is not None
    assert state.usage.completion_tokens == 3
    out = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    terminal = out[-1].item
    assert isinstance(terminal, Frame)
    assert (list(terminal.firsts), list(terminal.attempts)) == ([3], [2])
    assert terminal.finishes[0].reason == FinishReason.CANCELLED


async def test_id_can_be_used_again_once_its_cancelled_request_is_forgotten(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("q-1"), max_queued=2)
    await gateway.cancel(MODEL, "q-1", mark())
    await wires.pass_ms(5 * SOON_MS + 100)
    await gateway.submit(record("q-1", slot=11), max_queued=2)
    taken = await claim(engine)
    assert taken["q-1"].record.slot == 11
    assert await claim(engine) == {}
