"""The publisher: one frame per gateway and pass, coalesced when the server is slow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

import numpy as np
import pytest
from headrace_contracts.pb.queue_pb2 import Frame
from headrace_engine.intake.publisher import pump
from headrace_engine.state.outputs import PassOutputs
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import FrameId
from headrace_transport.memory_broker import MemoryBroker
from support.fake_engine import IntakeBench, token_of
from support.held import make_record
from support.waiting import eventually


def empty_pass(pass_id: int) -> PassOutputs:
    """A pass without rows."""
    none = np.zeros(0, np.int32)
    return PassOutputs(pass_id, np.zeros(0, np.int64), none, none, none, none)


class ScriptedDoor:
    """Implements ``OutputDoor``: batches in order, then closed."""

    def __init__(self, *batches: list[PassOutputs]) -> None:
        self._batches = deque(batches)

    def take_outputs(self, timeout_s: float) -> list[PassOutputs] | None:
        """The next batch."""
        return self._batches.popleft() if self._batches else None


def test_the_pump_hands_over_every_batch_and_ends_with_the_door() -> None:
    got: list[list[PassOutputs]] = []
    first, second = [empty_pass(1)], [empty_pass(2), empty_pass(3)]

    pump(ScriptedDoor(first, [], second), got.append)

    assert got == [first, second]


@pytest.mark.rule("frames.one-per-gateway-and-pass")
async def test_each_pass_leaves_as_one_frame_for_each_gateway() -> None:
    bench = IntakeBench(MemoryBroker())
    async with bench.running():
        for number in range(4):
            record = make_record(f"r{number}", gateway=f"gw{number % 2}", slot=number + 1)
            await bench.submit(record)
        await bench.pushed(4)
        for _ in range(3):
            bench.step()
            await eventually(lambda: bench.intake.state().unpublished_tokens == 0)

        for gateway in ("gw0", "gw1"):
            frames = await bench.frames(gateway)
            assert [len(frame.slots) for frame in frames] == [2, 2, 2]
            assert [frame.pass_id for frame in frames] == [1, 2, 3]


async def test_passes_that_come_while_one_is_under_way_leave_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = IntakeBench(MemoryBroker())
    gate, real = asyncio.Event(), bench.wire.publish

    async def slow(frames: Mapping[str, Frame]) -> Mapping[str, FrameId]:
        await gate.wait()
        return await real(frames)

    monkeypatch.setattr(bench.wire, "publish", slow)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=300, slot=3))
        await bench.pushed(1)
        bench.step()
        await asyncio.sleep(0.01)
        bench.step(100)
        gate.set()
        await eventually(lambda: bench.value("headrace_engine_published_tokens_total") == 101)

        frames = await bench.frames("gw")
        assert [frame.counts[0] for frame in frames] == [1, 100]
        assert (await bench.out()).tokens[3] == [token_of(1, 0, index) for index in range(101)]


async def test_a_publication_whose_answer_was_lost_is_repeated_and_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = IntakeBench(MemoryBroker())
    real, failures = bench.wire.publish, [2]

    async def lossy(frames: Mapping[str, Frame]) -> Mapping[str, FrameId]:
        ids = await real(frames)
        if failures[0]:
            failures[0] -= 1
            raise TransportUnavailable("the answer was lost")
        return ids

    monkeypatch.setattr(bench.wire, "publish", lossy)
    async with bench.running():
        await bench.submit(make_record(max_new_tokens=4, slot=3))
        await bench.pushed(1)
        bench.step(4)
        await eventually(lambda: bench.intake.state().held == 0)

    out = await bench.out()
    assert out.tokens[3] == [token_of(1, 0, index) for index in range(4)]
    assert len(out.frames) == 3
    entries = [entry for _, entry in await bench.gateway.read_log("r1")]
    assert [token for entry in entries for token in entry.tokens] == out.tokens[3]


async def test_rows_of_requests_that_are_gone_are_dropped() -> None:
    bench = IntakeBench(MemoryBroker(), lease_ms=60_000)
    async with bench.running():
        await bench.submit(make_record("gone", slot=1))
        await bench.submit(make_record("here", slot=2))
        await bench.pushed(2)
        outputs = bench.fake.step()
        await bench.wire.release("m", "engine-1", {"gone": 1})
        await bench.intake.keeper.renew({"gone": 1, "here": 1})
        bench.intake.take([outputs])
        await eventually(lambda: bench.value("headrace_engine_published_tokens_total") == 1)

        assert list((await bench.out()).tokens) == [2]


async def test_logprobs_travel_with_their_tokens_into_frame_and_log() -> None:
    bench = IntakeBench(MemoryBroker())
    record = make_record(max_new_tokens=3, slot=5)
    record.sampling.logprobs = 2
    async with bench.running():
        await bench.submit(record)
        await bench.pushed(1)
        bench.step(3)
        await eventually(lambda: bench.intake.state().held == 0)

    frames = await bench.frames("gw")
    chosen = [value for frame in frames for item in frame.logprobs for value in item.chosen]
    assert chosen == [0.0, -1.0, -2.0]
    entries = [entry for _, entry in await bench.gateway.read_log("r1")]
    logged = [value for entry in entries for item in entry.logprobs for value in item.chosen]
    assert logged == chosen
    assert {item.width for entry in entries for item in entry.logprobs} == {2}
