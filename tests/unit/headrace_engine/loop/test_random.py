"""The whole core against the truth: random arrivals, cancels, failures, tiny memory.

Whatever happens to it, a sequence says what it would say alone and without a cache.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from headrace_contracts.prefix_key import fold
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import colliding_fold
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
