"""The whole core against the truth: random arrivals, cancels, failures, tiny memory.

Whatever happens to it, a sequence says what it would say alone and without a cache.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from itertools import count
from typing import Any

import pytest
from headrace_contracts.prefix_key import fold
from headrace_engine.errors import EngineFailed
from headrace_engine.scheduler.journal import Journal
from headrace_engine.state.request import RequestHandle
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import Rig, colliding_fold
from support.engine_machine import EngineMachine
from support.lengths import times


@pytest.mark.rule("request.one-terminal-status")
@pytest.mark.rule("cache.same-tokens")
@pytest.mark.rule("cache.poison-spreads")
@pytest.mark.rule("sched.trial-equals-outcome")
@pytest.mark.rule("loop.audit")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("colliding", [False, True])
def test_whatever_happens_each_sequence_says_what_it_says_alone(
    phases: int, colliding: bool
) -> None:
    machine = type(
        "Machine",
        (EngineMachine,),
        {"phases": phases, "fold": staticmethod(colliding_fold if colliding else fold)},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=times(50 if not colliding else 20),
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


STEPS = [
    "loop.thread.setup_batch",
    "loop.thread.update_batch",
    "loop.thread.EngineLoop.publish_metrics",
    "loop.thread.EngineLoop._tell_started",
    "loop.lifecycle.Lifecycle.accept",
    "loop.lifecycle.Lifecycle._make",
    "loop.lifecycle.Lifecycle.end",
    "loop.lifecycle.Lifecycle.expire",
    "loop.lifecycle.Lifecycle.forget",
    "loop.lifecycle.Lifecycle._usage",
    "loop.outputs.OutputBuilder.end",
    "loop.outputs.OutputBuilder.start",
    "loop.outputs.OutputBuilder.take",
    "scheduler.scheduler.admit_prompt",
    "scheduler.scheduler.replay_memory",
    "scheduler.scheduler.commit_results",
    "scheduler.residents.Residents.enter",
    "scheduler.residents.Residents.activate",
    "scheduler.residents.Residents.end",
    "scheduler.residents.Residents._release",
    "scheduler.order.WaitingLine.add",
    "scheduler.order.WaitingLine.remove",
    "scheduler.order.TotalOrder.settle",
    "scheduler.reasons.ReasonBook.spent",
    "scheduler.journal.Journal.planned",
    "cache.logical_pool.LogicalBlockPool.leave",
    "cache.trie.PrefixTrie.insert",
    "state.sequence.SequenceColumns.flush",
]
"""What a pass calls, somewhere in it. It breaks, and again the next time: that may be when everybody is
told that the engine failed."""
TELLING = {"loop.outputs.OutputBuilder.end", "loop.outputs.OutputBuilder.start"}
"""Breaks once: without it nobody can be told."""


@pytest.mark.rule("request.one-terminal-status")
@pytest.mark.rule("loop.failed-batch-ends-all")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_breaks_at_any_time_every_choice_gets_one_end(
    step: str, phases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broke = 0
    for nth in (1, 2, 5, 12):
        rig = Rig(phases=phases, pool_blocks=10, max_batch=3, max_waiting=6, journal=Journal(8000))
        for i in range(12):
            rig.push(
                [i % 3] * (1 + i), 1 + i % 7, n=1 + i % 2, deadline_s=None if i % 4 else 1e9 * i
            )
        rig.push([], 2)
        rig.cancel(RequestHandle(5))
        rig.door.drain()
        with monkeypatch.context() as patch:
            again = step not in TELLING
            _break(patch, f"headrace_engine.{step}", range(nth, nth + 1 + again))
            try:
                rig.loop.run()
            except EngineFailed:
                broke += 1
        for outputs in rig.door.take_outputs(0) or []:
            rig.hear(outputs)
        for handle, request in rig.requests.items():
            for choice in range(request.n):
                assert rig.choice(handle, choice).end is not None
    assert broke, "it was never called"


def _break(patch: pytest.MonkeyPatch, step: str, which: range) -> None:
    """These calls of a function raise, counted from 1."""
    owner, name = step.rsplit(".", 1)
    original: Any = getattr(pkgutil.resolve_name(owner), name)
    calls = count(1)

    def breaking(*args: Any, **named: Any) -> Any:
        if next(calls) in which:
            raise ValueError(step)
        return original(*args, **named)

    patch.setattr(step, breaking)


PROGRAM = """
from headrace_engine.scheduler.journal_replay import Replayer
from support.journals import recorded

journal, rig = recorded(limit_bytes=8000, requests=12)
rig.scheduler.pool.evict_all()
objects = rig.scheduler.objects
print(__debug__, objects.live, objects.pages.coalesced())
for segment in journal.segments:
    result = Replayer(segment).run()
    print(segment.state is None, result.difference, result.passes > 5)
"""


@pytest.mark.rule("loop.audit")
@pytest.mark.rule("journal.replays")
def test_nothing_hangs_on_asserts_that_an_interpreter_may_leave_out() -> None:
    run = subprocess.run(
        [sys.executable, "-O", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.stdout == "False 0 True\nFalse None True\nFalse None True\n", run.stderr
