"""Out streams and control streams: explicit ids, blocking reads, trimming."""

from __future__ import annotations

import asyncio

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Control, Frame, ModelCard
from headrace_transport.errors import ForeignVersion
from headrace_transport.interface import FIRST_FRAME, FrameId
from support.wires import GATEWAY, LEASE_MS, MODEL, Wires, claim, entry, frame, mark, record


async def test_frames_are_read_in_order_from_an_explicit_id(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    sent = [frame([i], first=i) for i in range(5)]
    names = [(await engine.publish({GATEWAY: each}))[GATEWAY] for each in sent]

    read = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)

    assert [each.item for each in read] == sent
    assert [each.id for each in read] == names
    rest = await gateway.read_out(GATEWAY, names[2], block_ms=1000)
    assert [each.item for each in rest] == sent[3:]


async def test_read_waits_for_a_frame_and_gives_up_in_time(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    assert await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=10) == []
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=20_000))
        await asyncio.sleep(0.02)
        await engine.publish({GATEWAY: frame([1])})
    assert len(reading.result()) == 1


async def test_one_publish_reaches_every_gateway_that_lives(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for name in ("gw-a", "gw-b"):
        await gateway.beat_gateway(name, ttl_ms=LEASE_MS)
    frames = {name: frame([i]) for i, name in enumerate(("gw-a", "gw-dead", "gw-b"))}

    names = await engine.publish(frames)

    assert set(names) == {"gw-a", "gw-b"}
    for name in names:
        (read,) = await gateway.read_out(name, FIRST_FRAME, block_ms=1000)
        assert read.item == frames[name]
    assert await gateway.read_out("gw-dead", FIRST_FRAME, block_ms=1) == []
    assert await engine.publish({}) == {}


async def test_frame_may_be_filled_again_after_it_was_published(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    reused = frame([1])
    await engine.publish({GATEWAY: reused})
    reused.Clear()
    (read,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert read.item == frame([1])


async def test_trimming_keeps_the_entry_that_is_named(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    names = [(await engine.publish({GATEWAY: frame([i])}))[GATEWAY] for i in range(300)]
    await gateway.trim_out(GATEWAY, names[290])
    read = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert [each.id for each in read] == names[290:]
    await gateway.trim_out("nobody", FrameId("5-0"))


async def test_a_reader_moves_past_what_has_another_version_and_counts_it(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    future = Frame()
    future.CopyFrom(frame([1]))
    future.version = 2
    await engine.publish({GATEWAY: future})
    (strange,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert strange.item is None
    await engine.publish({GATEWAY: frame([2])})
    read = await gateway.read_out(GATEWAY, strange.id, block_ms=1000)
    assert [each.item for each in read] == [frame([2])]
    assert gateway.foreign.counts["frame"] == 1


async def test_a_resume_log_of_another_version_is_refused_by_gateways(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    future = entry([7])
    future.version = 2
    await engine.append_log("e-1", "r1", 1, future)
    with pytest.raises(ForeignVersion, match="of r1 has wire version 2, and 1 is read here"):
        await gateway.read_log("r1")
    assert gateway.foreign.counts["log"] == 1


async def test_a_request_whose_log_has_another_version_is_a_dead_letter(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    future = entry([7])
    future.version = 2
    await engine.append_log("e-1", "r1", 1, future)
    await engine.release(MODEL, "e-1", {"r1": 1})
    assert await claim(engine) == {}
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.ERROR)
    assert engine.foreign.counts["log"] == 1


async def test_a_card_of_another_version_is_no_card(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await engine.put_card(ModelCard(version=2, model=MODEL))
    assert await gateway.cards() == []
    assert await gateway.card(MODEL) is None
    assert gateway.foreign.counts["card"] == 2


async def test_control_is_read_once_in_order(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(3):
        await gateway.submit(record(f"r{i}", slot=i), max_queued=9)
    await claim(engine)
    for i in range(2):
        await gateway.cancel(MODEL, f"r{i}", mark())
    first = await engine.read_control("e-1", "0-0", block_ms=1000)
    assert [cancelled(control) for _, control in first] == ["r0", "r1"]
    last = first[-1][0]
    assert await engine.read_control("e-1", last, block_ms=5) == []
    await gateway.cancel(MODEL, "r2", mark())
    second = await engine.read_control("e-1", last, block_ms=1000)
    assert [cancelled(control) for _, control in second] == ["r2"]


def cancelled(control: Control | None) -> str:
    """The request that a nudge is about."""
    assert control is not None
    return control.cancel.id
