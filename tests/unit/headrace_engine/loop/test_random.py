"""The whole core against the truth: random arrivals, cancels, failures, tiny memory.

Whatever happens to it, a sequence says what it would say alone and without a cache.
"""

from __future__ import annotations

import pytest
from headrace_contracts.prefix_key import fold
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import colliding_fold
from support.engine_machine import EngineMachine


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
            max_examples=50 if not colliding else 20,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
