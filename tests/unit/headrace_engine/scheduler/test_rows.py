"""Rows: urgent ones get them at once, tenants by weight, and thousands give them up at once."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.policy import may_take_row
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from support.clock import FakeClock
from support.engine import Rig


@pytest.mark.rule("sched.urgent-rows")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("urgent", [1, 2])
def test_urgent_sequences_get_rows_of_the_last_in_rank(phases: int, urgent: int) -> None:
    rig = Rig(max_batch=3, phases=phases, pool_blocks=40)
    slow = [rig.push([i, 2, 3], 30, band=2) for i in range(1, 4)]
    for _ in range(6):
        rig.step()
    first = [rig.push([9, 8, i], 4, band=0) for i in range(urgent)]
    for _ in range(phases + 1):
        rig.step()
    assert all(rig.choice(handle).started is not None for handle in first)
    rig.run()
    counters = rig.scheduler.residents.counters
    assert counters.preemptions == urgent, "nobody lost a row for nothing"
    for handle in (*slow, *first):
        rig.assert_true(handle)
        assert rig.reason(handle) is FinishReason.LENGTH
    preempted = [rig.choice(handle).end for handle in slow]
    assert [end.usage.preemptions for end in preempted if end] == [0] * (3 - urgent) + [1] * urgent
    assert counters.recomputed_tokens == 0, "its blocks were still there"
    rig.assert_idle()


@pytest.mark.rule("sched.urgent-rows")
@pytest.mark.parametrize(("band", "tenant"), [(1, ""), (1, "other"), (2, "other")])
def test_within_a_band_and_from_more_urgent_ones_no_row_is_taken(band: int, tenant: str) -> None:
    rig = Rig(max_batch=2, phases=2, pool_blocks=40)
    running = [rig.push([i, 2, 3], 20, band=1) for i in range(2)]
    for _ in range(4):
        rig.step()
    late = rig.push([7, 7, 7], 4, band=band, tenant=tenant)
    for _ in range(8):
        rig.step()
    assert rig.choice(late).started is None
    assert rig.loop.metrics.get().waiting_by_reason == {"batch_rows": 1}
    rig.run()
    assert rig.scheduler.residents.counters.preemptions == 0
    for handle in (*running, late):
        rig.assert_true(handle)


def test_a_row_that_comes_free_anyway_is_waited_for() -> None:
    rig = Rig(max_batch=2, phases=2, pool_blocks=40)
    leaving, staying = (rig.push([i, 2, 3], 30, band=2) for i in range(2))
    for _ in range(4):
        rig.step()
    rig.cancel(leaving)
    urgent = rig.push([7, 7, 7], 4, band=0)
    rig.run()
    assert rig.scheduler.residents.counters.preemptions == 0
    for handle in (leaving, staying, urgent):
        rig.assert_true(handle)


def test_only_a_more_urgent_band_takes_rows() -> None:
    assert may_take_row((0, 5, 9.0, 9), (1, 0, 1.0, 1))
    assert not may_take_row((1, 0, 1.0, 1), (1, 5, 9.0, 9))
    assert not may_take_row((2, 0, 1.0, 1), (1, 5, 9.0, 9))


class FreeDevice:
    """Answers at once, always the same token."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self.limits = limits
        self._inside: deque[BatchData] = deque()

    def submit(self, batch: BatchData) -> None:
        self._inside.append(batch)

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        batch = self._inside.popleft()
        rows = batch.generating
        batch.output = BatchOutput(np.full(rows, 7, np.int32), np.zeros(rows, np.bool_))
        return batch


def engine(settings: SchedulerSettings) -> tuple[EngineLoop, EngineGateway]:
    clock = FakeClock()
    door = EngineGateway(clock)
    shape = ModelShape("free", "free", 32_000, 1 << 20, "free-1", "none", 4)
    device = FreeDevice(executor_limits(settings, 64))
    return EngineLoop(door, device, settings, clock, shape), door


@pytest.mark.parametrize("weights", [{}, {"small": 3.0}, {"large": 2.0}])
def test_two_tenants_at_ten_to_one_get_their_weights(weights: dict[str, float]) -> None:
    settings = SchedulerSettings(
        max_batch=16,
        max_waiting=1000,
        batch_tokens=256,
        prefill_chunk_tokens=64,
        session_tokens=256,
        pool_blocks=400,
        quantum_passes=8,
        tenant_weights=weights,
    )
    loop, door = engine(settings)
    rng = random.Random(0)
    tenants: dict[int, str] = {}
    waiting = {"large": 0, "small": 0}
    served = {"large": 0, "small": 0}

    def hear(outputs: PassOutputs) -> None:
        counts: list[int] = outputs.counts.tolist()
        for handle, count in zip(outputs.handles.tolist(), counts, strict=True):
            served[tenants[handle]] += count
        for start in outputs.starts:
            tenant = tenants[int(outputs.handles[start.row])]
            served[tenant] += start.prompt_tokens
            waiting[tenant] -= 1

    for _ in range(2500):
        # What is offered is ten to one, and more than either can get.
        for tenant, backlog in (("large", 100), ("small", 10)):
            while waiting[tenant] < backlog:
                handle = len(tenants) + 1
                tenants[handle] = tenant
                waiting[tenant] += 1
                prompt = [rng.randrange(32_000) for _ in range(rng.randrange(4, 60))]
                door.push(
                    Request(
                        id=str(handle),
                        handle=RequestHandle(handle),
                        prompt=np.array(prompt, np.int32),
                        sampling=Sampling(max_new_tokens=rng.randrange(4, 60)),
                        tenant=tenant,
                    )
                )
        loop.step()
        for outputs in door.take_outputs(0) or []:
            hear(outputs)
    share = served["small"] / (served["small"] + served["large"])
    weight = {"small": 1.0, "large": 1.0, **weights}
    wanted = weight["small"] / sum(weight.values())
    assert share == pytest.approx(wanted, rel=0.05)


@pytest.mark.rule("seq.cancel-to-freed")
def test_ten_thousand_cancels_at_once_are_done_within_the_phases() -> None:
    count = 10_000
    settings = SchedulerSettings(
        max_batch=64,
        max_waiting=count,
        batch_tokens=1024,
        prefill_chunk_tokens=256,
        session_tokens=256,
        pool_blocks=1000,
        phases=2,
    )
    loop, door = engine(settings)
    for handle in range(1, count + 1):
        prompt = np.array([handle % 31_000, handle // 31_000, 5, 6], np.int32)
        door.push(
            Request(
                id=str(handle),
                handle=RequestHandle(handle),
                prompt=prompt,
                sampling=Sampling(max_new_tokens=100),
                tenant=f"t{handle % 7}",
            )
        )
    for _ in range(5):
        loop.step()
    assert loop.metrics.get().running == 64
    ended: set[int] = set()
    for handle in range(1, count + 1):
        door.cancel(Cancel(RequestHandle(handle), FinishReason.CANCELLED))
    passes = 0
    while loop.scheduler.residents.sequences or loop.in_flight:
        loop.step()
        passes += 1
    assert passes <= settings.phases + 1
    for outputs in door.take_outputs(0) or []:
        for end in outputs.ends:
            handle = int(outputs.handles[end.row])
            assert handle not in ended
            ended.add(handle)
    assert len(ended) == count
    assert not loop.scheduler.residents.sequences
    assert loop.scheduler.residents.free_slots == 64
    loop.audit()
    stats = loop.scheduler.cache_stats()
    assert stats.held_blocks == stats.in_flight_blocks == 0
