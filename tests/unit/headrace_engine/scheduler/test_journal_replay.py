"""Replay of what the random test of the whole core did: every plan, from every segment."""

from __future__ import annotations

import pytest
from headrace_contracts.prefix_key import fold
from headrace_engine.scheduler.journal_replay import Replayer
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine_machine import EngineMachine


class ReplayedMachine(EngineMachine):
    """Whatever happened, replaying the journal makes the same plans."""

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "rig"):
            return
        assert self.journal is not None
        self.journal.flush()
        compared = 0
        for segment in self.journal.segments:
            result = Replayer(segment).run()
            plans = sum(record[0] == "p" for record in segment.records)
            assert result.difference is None, result.difference
            assert result.passes == plans
            compared += plans
        assert compared or not self.rig.scheduler.passes


@pytest.mark.rule("journal.replays")
@pytest.mark.rule("journal.every-input")
@pytest.mark.rule("journal.snapshot-is-whole")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("journal_bytes", [1 << 30, 6000])
def test_random_runs_give_the_same_plans_from_the_start_and_from_every_snapshot(
    phases: int, journal_bytes: int
) -> None:
    machine = type(
        "Machine",
        (ReplayedMachine,),
        {"phases": phases, "fold": staticmethod(fold), "journal_bytes": journal_bytes},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=8,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
