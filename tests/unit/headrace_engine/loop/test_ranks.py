"""Ranks: the same plans, the same number of passes, one door, and sleep where there is no work."""

from __future__ import annotations

import threading
import time
from hashlib import blake2b
from typing import Any, Literal

import pytest
from headrace_contracts.codes import Code
from headrace_engine.errors import EngineFailed
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.ranks import RankGroup, SingleRank
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_replay import Replayer
from headrace_engine.state.batch import BatchData
from support.clock import FakeClock
from support.engine import InlineRunner, Rig, TokenExactExecutor, small_settings


class Recording(TokenExactExecutor):
    """Notes a hash of what each batch was asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: list[str] = []
        self.rows = 0

    def submit(self, batch: BatchData) -> None:
        super().submit(batch)
        digest = blake2b(digest_size=16)
        digest.update(repr((batch.pass_id, batch.phase, batch.generating)).encode())
        for column in (
            batch.slots, batch.begins, batch.lengths, batch.autoregressive, batch.sample_indices,
            batch.tokens, batch.store_from, batch.table_slots, batch.table_indices,
            batch.table_offsets,
        ):  # fmt: skip
            digest.update(len(column).to_bytes(4, "little"))
            digest.update(column.tobytes())
        self.hashes.append(digest.hexdigest())
        self.rows += batch.rows


class TickingClock(FakeClock):
    """Every look takes its time."""

    def __init__(self, tick_s: float) -> None:
        super().__init__()
        self._tick_s = tick_s

    def monotonic(self) -> float:
        self.advance(self._tick_s)
        return super().monotonic()


class Group:
    """Engines in step, each on a thread; what they say is heard by one listener."""

    def __init__(self, size: int, kind: Literal["tensor", "data"], **changes: Any) -> None:
        settings = small_settings(**changes)
        self.listener = Rig(settings)
        self.door = self.listener.door = EngineGateway()
        self.ranks = RankGroup(size, kind)
        self.executors = [Recording() for _ in range(size)]
        self.failures: list[BaseException] = []
        self.loops: list[EngineLoop] = []
        self.journals = [Journal() for _ in range(size)]
        for executor, rank in zip(self.executors, self.ranks.members(), strict=True):
            limits = executor_limits(settings, executor.block_bytes(settings.block_tokens))
            runner = InlineRunner(executor, limits)
            # Clocks that disagree: only rank 0's may count.
            place = len(self.loops)
            clock = TickingClock(0.01 * (place + 1))
            clock.advance(1000.0 * place)
            journal = self.journals[place]
            self.loops.append(
                EngineLoop(
                    self.door, runner, settings, clock, executor.shape, ranks=rank, journal=journal
                )
            )
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in self.loops
        ]

    def _run(self, loop: EngineLoop) -> None:
        try:
            loop.run()
        except EngineFailed as failure:
            self.failures.append(failure)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Until all have left their loops; hears everything."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a rank hangs"
        self.hear()

    def hear(self) -> None:
        for outputs in self.door.take_outputs(0) or []:
            self.listener.hear(outputs)

    def push_mixture(self) -> list[int]:
        rig = self.listener
        handles = [rig.push(list(range(i, i + 5 + 3 * i)), 3 + i) for i in range(9)]
        handles += [rig.push([1, 2, 3, 4, 5, 6, 7, 8, 9], 5, n=2, seed=i) for i in range(3)]
        return [int(handle) for handle in handles]


@pytest.mark.rule("ranks.same-plans")
@pytest.mark.rule("ranks.one-door")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("phases", [1, 2])
def test_ranks_of_a_tensor_group_commit_the_same_plans(size: int, phases: int) -> None:
    # Memory is short and bands age, so that evictions and the clock decide too.
    group = Group(size, "tensor", phases=phases, pool_blocks=14, ageing_s=0.001)
    handles = group.push_mixture()
    gone = group.listener.push([5] * 20, 8)
    group.listener.cancel(gone)
    group.door.drain()
    group.start()
    group.join()
    assert group.failures == []
    first = group.executors[0].hashes
    assert len(first) > 10
    assert len(set(first)) == len(first)
    for executor in group.executors[1:]:
        assert executor.hashes == first
    for handle in handles:
        for choice in range(group.listener.requests[handle].n):
            group.listener.assert_true(handle, choice)
            assert group.listener.choice(handle, choice).end is not None


@pytest.mark.rule("ranks.same-plans")
@pytest.mark.rule("journal.every-input")
@pytest.mark.parametrize("phases", [1, 2])
def test_the_journal_of_every_rank_gives_its_plans_again_though_time_sizes_the_chunks(
    phases: int,
) -> None:
    group = Group(3, "tensor", phases=phases, pool_blocks=64, step_target_ms=45.0)
    handles = group.push_mixture()
    group.door.drain()
    group.start()
    group.join()
    assert group.failures == []
    plans: list[list[bytes]] = []
    for journal in group.journals:
        (segment,) = journal.segments
        result = Replayer(segment).run()
        assert result.difference is None
        plans.append([record[2] for record in segment.records if record[0] == "p"])
        assert result.passes == len(plans[-1]) > 10
    assert plans[0] == plans[1] == plans[2]
    for handle in handles:
        group.listener.assert_true(handle)


@pytest.mark.rule("ranks.same-passes")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("phases", [1, 2])
def test_ranks_of_a_data_group_pass_the_same_number_of_times(size: int, phases: int) -> None:
    group = Group(size, "data", phases=phases)
    handles = [group.listener.push([i, 2, 3, i], 2 + 5 * i) for i in range(1, 7)]
    group.door.drain()
    group.start()
    group.join()
    assert group.failures == []
    assert len({loop.scheduler.passes for loop in group.loops}) == 1
    counts = {len(executor.hashes) for executor in group.executors}
    assert len(counts) == 1
    assert counts.pop() >= 32, "the longest decides"
    assert len({executor.rows for executor in group.executors}) > 1, "each has its own work"
    for handle in handles:
        group.listener.assert_true(handle)
        assert len(group.listener.tokens(handle)) == 2 + 5 * int(handle)


@pytest.mark.rule("ranks.idle-sleeps")
@pytest.mark.parametrize("kind", ["tensor", "data"])
def test_an_idle_group_sleeps_and_wakes(kind: Literal["tensor", "data"]) -> None:
    group = Group(3, kind)
    group.start()
    for turn in range(3):
        before = [loop.metrics.get().pass_id for loop in group.loops]
        handle = group.listener.push([1, 2, 3], 4)
        while group.listener.choice(handle).end is None:
            for outputs in group.door.take_outputs(5) or []:
                group.listener.hear(outputs)
        group.listener.assert_true(handle)
        # All fall asleep: then nothing moves, however long it lasts.
        while any(loop.metrics.get().running for loop in group.loops) or group.ranks.waiting < 2:
            time.sleep(0.001)
        asleep = group.ranks.meetings
        time.sleep(0.05)
        assert group.ranks.meetings == asleep, f"the idle group met in turn {turn}"
        after = [loop.metrics.get().pass_id for loop in group.loops]
        assert all(b > a for a, b in zip(before, after, strict=True))
    group.door.drain()
    group.join()
    assert group.failures == []


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("kind", ["tensor", "data"])
def test_when_one_rank_fails_all_end_and_everybody_is_told(
    broken: int, kind: Literal["tensor", "data"]
) -> None:
    group = Group(3, kind)
    group.executors[broken].broken_pass = 5
    handles = [group.listener.push([i, 2, 3, i], 20) for i in range(1, 7)]
    group.start()
    group.join()
    assert len(group.failures) == 3
    for handle in handles:
        end = group.listener.choice(handle).end
        assert end is not None
        assert end.code is Code.ENGINE_FAILED


def test_a_rank_alone_is_a_group_of_one() -> None:
    rank = SingleRank()
    assert rank.reduce_active(3) == 3
    rank.barrier()
    rank.abandon()
    with pytest.raises(ValueError, match="a group of 0 ranks"):
        RankGroup(0, "data")
