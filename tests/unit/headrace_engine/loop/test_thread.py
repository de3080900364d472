"""The loop: the contract's order, both phases, the ends of everything."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.errors import EngineDraining, EngineFailed
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from support.engine import Rig, TokenExactExecutor, small_settings, true_tokens

BOTH = pytest.mark.parametrize("phases", [1, 2])


@BOTH
def test_a_request_gets_its_tokens_and_one_end(phases: int) -> None:
    rig = Rig(phases=phases)
    handle = rig.push([1, 2, 3, 4, 5], 6)
    rig.run(20)
    assert rig.tokens(handle) == true_tokens([1, 2, 3, 4, 5], 6)
    assert rig.reason(handle) is FinishReason.LENGTH
    end = rig.choice(handle).end
    assert end is not None
    assert end.message == ""
    assert end.usage.prompt_tokens == 5
    assert end.usage.completion_tokens == 6
    started = rig.choice(handle).started
    assert started is not None
    assert started.prompt_tokens == 5
    rig.assert_idle()


@pytest.mark.rule("loop.order")
def test_the_steps_of_a_pass_come_in_the_contracts_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    loop = rig.loop
    said: list[str] = []
    lifecycle, scheduler = loop._lifecycle, loop.scheduler  # pyright: ignore[reportPrivateUsage]
    steps = [
        (rig.door, "pop"),
        (lifecycle, "validate"),
        (lifecycle, "accept"),
        (lifecycle, "cancel"),
        (loop, "_notify"),
        (loop, "_retire"),
        (scheduler, "schedule"),
        (loop, "_fail_stalled_head_of_line"),
        (loop, "publish_metrics"),
        (loop, "_hand_over"),
        (loop, "_take_finished_batch"),
        (loop, "_update"),
    ]
    for owner, name in steps:
        original = getattr(owner, name)

        def spy(*args: Any, _name: str = name, _original: Any = original, **named: Any) -> Any:
            said.append(_name)
            return _original(*args, **named)

        monkeypatch.setattr(owner, name, spy)
    rig.push([1, 2, 3], 4)
    rig.step()
    said.clear()
    rig.step()
    assert said == [
        "pop", "validate", "accept", "cancel", "_notify", "_retire", "schedule",
        "_fail_stalled_head_of_line", "publish_metrics", "_hand_over", "_take_finished_batch",
        "_update", "_retire", "_notify",
    ]  # fmt: skip


@pytest.mark.rule("loop.phases")
def test_two_phases_plan_the_next_batch_before_the_last_is_back() -> None:
    rig = Rig(phases=2)
    handle = rig.push([1, 2, 3], 5)
    rig.step()
    assert rig.loop.in_flight == 1
    assert rig.tokens(handle) == []
    rig.step()
    assert rig.loop.in_flight == 1
    assert len(rig.tokens(handle)) == 1
    rig.run()


@pytest.mark.rule("loop.overshoot-dropped")
def test_a_token_sampled_after_the_stop_token_is_never_heard() -> None:
    whole = true_tokens([1, 2, 3], 6)
    stop = whole[3]
    first = whole.index(stop)
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=2)
    handle = rig.push([1, 2, 3], 30, stop_token_ids=frozenset([stop]))
    rig.run()
    assert rig.tokens(handle) == whole[: first + 1]
    assert rig.reason(handle) is FinishReason.STOP
    assert sum(batch.generating for batch in executor.batches) == first + 2
    rig.assert_idle()


@BOTH
def test_a_length_that_is_known_ahead_costs_no_extra_row(phases: int) -> None:
    executor = TokenExactExecutor()
    rig = Rig(executor=executor, phases=phases)
    rig.push([1, 2, 3], 5)
    rig.run()
    assert sum(batch.generating for batch in executor.batches) == 5


def test_stop_tokens_do_not_stop_before_min_new_tokens() -> None:
    whole = true_tokens([7, 8], 8)
    stops = frozenset(whole)
    rig = Rig()
    handle = rig.push([7, 8], 8, stop_token_ids=stops, min_new_tokens=5)
    rig.run()
    assert rig.tokens(handle) == whole[:6]


@BOTH
@pytest.mark.rule("seq.release-when-idle")
@pytest.mark.rule("request.one-terminal-status")
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3, 4], list(range(21)), list(range(24))])
def test_a_cancel_at_every_pass_frees_everything_and_harms_nobody(
    phases: int, prompt: list[int]
) -> None:
    for at in range(16):
        rig = Rig(phases=phases, max_batch=3, prefill_chunk_tokens=8, pool_blocks=20)
        other = rig.push([9, 9, 9, *prompt], 7)
        victim = rig.push(prompt, 6, n=2)
        for _ in range(at):
            rig.step()
        rig.cancel(victim)
        follower = rig.push(prompt, 3)
        rig.run(100)
        for choice in (0, 1):
            end = rig.choice(victim, choice).end
            assert end is not None
            assert end.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
            rig.assert_true(victim, choice)
        assert len(rig.tokens(other)) == 7
        assert len(rig.tokens(follower)) == 3
        rig.assert_true(other)
        rig.assert_true(follower)
        rig.assert_idle()


@BOTH
@pytest.mark.rule("seq.cancel-to-freed")
def test_a_cancelled_sequence_is_released_as_soon_as_its_batch_is_back(phases: int) -> None:
    rig = Rig(phases=phases)
    handle = rig.push([1, 2, 3], 50)
    for _ in range(6):
        rig.step()
    rig.cancel(handle)
    passes = 0
    while rig.scheduler.residents.sequences:
        rig.step()
        passes += 1
    assert passes <= phases + 1


@BOTH
def test_one_choice_can_be_ended_by_a_stop_string_while_the_other_goes_on(phases: int) -> None:
    rig = Rig(phases=phases)
    handle = rig.push([1, 2, 3], 9, n=2)
    for _ in range(5):
        rig.step()
    rig.cancel(handle, FinishReason.STOP, choice=1)
    rig.run()
    assert rig.reason(handle, 0) is FinishReason.LENGTH
    assert rig.reason(handle, 1) is FinishReason.STOP
    assert len(rig.tokens(handle, 0)) == 9
    assert len(rig.tokens(handle, 1)) < 9
    rig.assert_idle()


@BOTH
def test_a_deadline_ends_a_sequence_wherever_it_is(phases: int) -> None:
    rig = Rig(phases=phases, max_batch=1)
    now = rig.clock.monotonic()
    running = rig.push([1, 2], 40, deadline_s=now + 5)
    waiting = rig.push([1, 2], 40, deadline_s=now + 5)
    kept = rig.push([3, 4], 2)
    for _ in range(4):
        rig.step()
    assert rig.reason(running) is None
    rig.clock.advance(6)
    rig.run()
    for handle in (running, waiting):
        end = rig.choice(handle).end
        assert end is not None
        assert end.reason is FinishReason.DEADLINE
        assert end.code is Code.DEADLINE_EXCEEDED
    assert rig.tokens(running)
    assert rig.reason(kept) is FinishReason.LENGTH
    rig.assert_idle()


@BOTH
@pytest.mark.rule("loop.failed-batch-ends-all")
def test_a_failed_batch_gives_everybody_an_end_and_ends_the_loop(phases: int) -> None:
    executor = TokenExactExecutor()
    executor.broken_pass = 4
    rig = Rig(executor=executor, phases=phases, max_batch=2, max_waiting=1)
    handles = [rig.push([i, 1, 2], 20) for i in range(5)]
    with pytest.raises(EngineFailed, match="the device broke"):
        rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    assert rig.door.take_outputs(0) is None
    for handle in handles:
        end = rig.choice(handle).end
        assert end is not None
        assert end.reason is FinishReason.ERROR
        assert end.code is Code.ENGINE_FAILED
        rig.assert_true(handle)
    with pytest.raises(EngineDraining):
        rig.push([1], 1)


@BOTH
@pytest.mark.rule("loop.failed-batch-ends-all")
def test_whoever_was_in_the_batch_that_failed_is_told_to_have_started(phases: int) -> None:
    executor = TokenExactExecutor()
    executor.broken_pass = 1
    rig = Rig(executor=executor, phases=phases, max_batch=1, max_waiting=1)
    first, waiting = (rig.push([i, 1, 2], 20) for i in range(2))
    with pytest.raises(EngineFailed, match="the device broke"):
        rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    assert rig.choice(first).started is not None
    assert rig.choice(waiting).started is None
    assert rig.choice(waiting).end is not None


@pytest.mark.rule("loop.failed-batch-ends-all")
def test_a_broken_invariant_tells_everybody_before_the_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    handle = rig.push([1, 2], 20)

    def broken(now_s: float) -> None:
        raise AssertionError("an invariant broke")

    monkeypatch.setattr(rig.scheduler, "_begin_pass", broken)
    with pytest.raises(EngineFailed, match="an invariant broke"):
        rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    end = rig.choice(handle).end
    assert end is not None
    assert end.code is Code.ENGINE_FAILED


@BOTH
@pytest.mark.rule("cache.poison-spreads")
def test_a_row_that_is_not_finite_fails_alone_and_its_blocks_are_not_used(phases: int) -> None:
    prompt = list(range(12))
    for at in range(1, 9):
        executor = TokenExactExecutor()
        rig = Rig(executor=executor, phases=phases, max_batch=4, prefill_chunk_tokens=16)
        poisoner = rig.push(prompt, 12)
        rig.step()
        dependents = [rig.push([*prompt, i, 50, 51], 6) for i in range(2)]
        executor.fail_rows.add((at, 0))
        rig.run(200)
        late = rig.push([*prompt, 50], 4)
        rig.run(200)
        for handle in (poisoner, *dependents, late):
            rig.assert_true(handle)
        end = rig.choice(poisoner).end
        assert end is not None
        assert end.code in (Code.NUMERIC_FAILURE, None)
        assert len(rig.tokens(late)) == 4
        rig.assert_idle()


@BOTH
def test_tokens_of_an_earlier_attempt_are_prefilled_and_never_decided_again(phases: int) -> None:
    prompt = [5, 6, 7]
    whole = true_tokens(prompt, 10)
    rig = Rig(phases=phases)
    handle = rig.push(prompt, 10, generated=[whole[:6]], attempt=2)
    rig.run()
    heard = rig.choice(handle)
    assert heard.first == 6
    assert heard.tokens == whole[6:]
    assert heard.end is not None
    assert heard.end.usage.completion_tokens == 10
    rig.assert_idle()


@pytest.mark.rule("seq.delivered-stays")
def test_an_attempt_that_had_delivered_everything_only_gets_its_end() -> None:
    prompt = [5, 6, 7]
    whole = true_tokens(prompt, 5)
    rig = Rig()
    full = rig.push(prompt, 5, generated=[whole])
    stopped = rig.push(prompt, 50, generated=[whole], stop_token_ids=frozenset([whole[-1]]))
    partly = rig.push(prompt, 6, n=3, generated=[[], [], []], finished=frozenset([0, 2]))
    rig.run()
    assert rig.tokens(full) == rig.tokens(stopped) == []
    assert rig.reason(full) is FinishReason.LENGTH
    assert rig.reason(stopped) is FinishReason.STOP
    assert rig.reason(partly, 0) is rig.reason(partly, 2) is None
    assert len(rig.tokens(partly, 1)) == 6
    rig.assert_idle()


@BOTH
def test_drain_finishes_what_is_here_and_leaves_the_loop(phases: int) -> None:
    rig = Rig(phases=phases, max_batch=1)
    handles = [rig.push([i], 3) for i in range(3)]
    rig.door.drain()
    with pytest.raises(EngineDraining):
        rig.push([1], 1)
    rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    assert [len(rig.tokens(h)) for h in handles] == [3, 3, 3]
    assert rig.loop.metrics.get().draining
    assert rig.loop.metrics.get().running == 0


@BOTH
def test_close_ends_everything_as_cancelled_because_of_draining(phases: int) -> None:
    rig = Rig(phases=phases, max_batch=1, max_waiting=1)
    handles = [rig.push([i], 30) for i in range(5)]
    for _ in range(3):
        rig.step()
    rig.door.close()
    rig.loop.run()
    for outputs in rig.door.take_outputs(0) or []:
        rig.hear(outputs)
    for handle in handles:
        end = rig.choice(handle).end
        assert end is not None
        assert end.reason is FinishReason.CANCELLED
        assert end.code is Code.DRAINING


def test_the_snapshot_of_an_idle_engine_is_idle() -> None:
    rig = Rig()
    rig.push([1, 2, 3, 4, 5], 3)
    rig.run()
    rig.door.drain()
    rig.loop.run()
    metrics = rig.loop.metrics.get()
    assert (metrics.running, metrics.waiting, metrics.retiring) == (0, 0, 0)
    assert metrics.cache.held_blocks == metrics.cache.in_flight_blocks == 0
    assert metrics.cache.cached_blocks == metrics.cached_blocks == 2, "the last one in part"
    assert metrics.free_blocks + metrics.cached_blocks == metrics.total_blocks
    assert metrics.generated_tokens == 3
    assert metrics.finished == {"length": 1}


@pytest.mark.rule("loop.audit")
def test_parts_of_the_pool_sum_to_the_whole_in_every_pass() -> None:
    rig = Rig(phases=2, cache_stats_interval_s=0.0, pool_blocks=9)
    for i in range(4):
        rig.push([i, 1, 2, 3, 4], 9)
    for _ in range(20):
        rig.step()
        stats = rig.loop.metrics.get().cache
        parts = stats.free_blocks + stats.cached_blocks + stats.held_blocks
        assert parts + stats.in_flight_blocks == stats.total_blocks == 9
    rig.run()


@pytest.mark.rule("loop.blocks-when-idle")
@pytest.mark.parametrize("phases", [1, 2])
def test_the_loop_on_real_threads_sleeps_when_idle_and_serves_when_asked(phases: int) -> None:
    settings = small_settings(phases=phases, audit=False)
    executor = EchoExecutor(100)
    runner = ExecutorThread(executor, executor_limits(settings, executor.block_bytes(4)))
    runner.start()
    door = EngineGateway(SystemClock())
    loop = EngineLoop(door, runner, settings, SystemClock(), executor.shape)
    thread = threading.Thread(target=loop.run)
    thread.start()

    def serve(handle: int) -> list[int]:
        prompt = np.arange(3, dtype=np.int32)
        door.push(Request("r", RequestHandle(handle), prompt, Sampling(max_new_tokens=5)))
        outputs: list[PassOutputs] = []
        while not any(o.ends for o in outputs):
            outputs += door.take_outputs(5) or []
        return [int(t) for o in outputs for t in o.tokens]

    assert serve(1) == [0, 1, 2, 0, 1]
    asleep = threading.Event()
    while loop.metrics.get().running:
        asleep.wait(0.001)
    passes = loop.metrics.get().pass_id
    asleep.wait(0.05)
    assert loop.metrics.get().pass_id == passes, "an idle engine runs passes"
    assert serve(2) == [0, 1, 2, 0, 1]
    door.drain()
    thread.join(10)
    assert not thread.is_alive()
    runner.close()


def test_an_executor_thread_that_is_gone_is_noticed() -> None:
    settings = small_settings(phases=1, audit=False)
    executor = EchoExecutor(100)
    runner = ExecutorThread(executor, executor_limits(settings, executor.block_bytes(4)))
    runner.start()

    class Gone:
        limits = runner.limits

        def submit(self, batch: object) -> None:
            runner.close()

        def take(self, timeout_s: float | None = None) -> None:
            return None

    door = EngineGateway(SystemClock())
    loop = EngineLoop(door, Gone(), settings, SystemClock(), executor.shape)
    door.push(Request("r", RequestHandle(1), np.zeros(1, np.int32), Sampling(max_new_tokens=5)))
    with pytest.raises(EngineFailed, match="gone"):
        loop.run()


def test_the_snapshot_names_who_waits_and_why_at_most_once_per_interval() -> None:
    rig = Rig(max_batch=2, phases=1, cache_stats_interval_s=1.0)
    running = [rig.push([i, 2, 3], 30) for i in range(2)]
    rig.step()
    late = [rig.push([7, 7, i], 4) for i in range(2)]
    rig.step()
    assert rig.loop.metrics.get().waits == []
    rig.clock.advance(1.5)
    rig.step()
    first, second = rig.loop.metrics.get().waits
    assert (first.handle, first.reason) == (late[0], "batch_rows")
    assert (second.handle, second.reason) == (late[1], "batch_rows")
    rig.run()
    for handle in (*running, *late):
        rig.assert_true(handle)
