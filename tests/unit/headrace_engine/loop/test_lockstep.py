"""The whole core beside a naive one: after every pass both have decided and hold the same."""

from __future__ import annotations

import pytest
from headrace_contracts.prefix_key import fold
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import colliding_fold
from support.lengths import times
from support.lockstep_machine import LockstepMachine, walk


def machine_of(
    phases: int, *, colliding: bool = False, recurrent: bool = False
) -> type[LockstepMachine]:
    """A machine with these settings."""
    return type(
        "Machine",
        (LockstepMachine,),
        {
            "phases": phases,
            "fold": staticmethod(colliding_fold if colliding else fold),
            "colliding": colliding,
            "recurrent": recurrent,
        },
    )


@pytest.mark.rule("blocks.counted")
@pytest.mark.rule("cache.unheld-by-age")
@pytest.mark.rule("sched.memory-by-order")
@pytest.mark.rule("sched.one-producer")
@pytest.mark.rule("siblings.kept")
@pytest.mark.rule("order.ageing")
@pytest.mark.rule("reasons.exactly-one")
@pytest.mark.rule("loop.audit")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize(
    ("colliding", "recurrent", "examples"),
    [(False, False, 20), (True, False, 6), (False, True, 10)],
)
def test_engine_and_naive_engine_decide_and_hold_the_same_after_every_pass(
    phases: int, colliding: bool, recurrent: bool, examples: int
) -> None:
    run_state_machine_as_test(
        machine_of(phases, colliding=colliding, recurrent=recurrent),
        settings=settings(
            max_examples=times(examples),
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.rule("sched.hysteresis")
@pytest.mark.rule("sched.urgent-rows")
@pytest.mark.rule("cache.poison-spreads")
@pytest.mark.rule("siblings.exact-beginning")
@pytest.mark.rule("siblings.bound-once")
@pytest.mark.rule("siblings.source-keeps-memory")
@pytest.mark.parametrize("phases", [1, 2])
def test_a_long_way_with_a_full_house_is_the_same_for_both(phases: int) -> None:
    preempted = copied = 0
    for seed in range(times(4)):
        machine = machine_of(phases, colliding=seed % 3 == 2)()
        walk(machine, seed, 60)
        preempted += machine.naive.preemptions
        copied += machine.naive.copied
    assert preempted > 5, "the house was never full"
    assert copied > 5, "nothing was shared in part"


@pytest.mark.rule("states.exact")
@pytest.mark.rule("states.interval")
@pytest.mark.rule("states.optional")
@pytest.mark.rule("states.with-their-block")
@pytest.mark.rule("states.left-behind")
@pytest.mark.parametrize("phases", [1, 2])
def test_recurrent_states_are_kept_found_and_lost_alike_on_a_long_way(phases: int) -> None:
    preempted = copies = 0
    for seed in range(times(4)):
        machine = machine_of(phases, colliding=seed % 3 == 2, recurrent=True)()
        walk(machine, seed, 60)
        preempted += machine.naive.preemptions
        copies += machine.executor.copied
    assert preempted > 5, "the house was never full"
    assert copies > 50, "no state was kept"
