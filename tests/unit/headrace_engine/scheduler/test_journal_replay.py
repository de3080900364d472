"""Replay of what the random test of the whole core did: every plan, from every segment."""

from __future__ import annotations

import pytest
from headrace_contracts.prefix_key import fold
from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.admit import admit_prompt
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_replay import Replayer
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.sequence import Sequence
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.engine import Rig
from support.engine_machine import EngineMachine
from support.journals import recorded
from support.lengths import times


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
            replayer = Replayer(segment)
            result = replayer.run()
            replayer.scheduler.audit()
            plans = sum(record[0] == "p" for record in segment.records)
            assert result.difference is None, result.difference
            assert result.passes == plans
            compared += plans
        assert compared or not self.rig.scheduler.passes


@pytest.mark.rule("journal.replays")
@pytest.mark.rule("journal.every-input")
@pytest.mark.rule("journal.snapshot-is-whole")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize(
    ("journal_bytes", "blocks_a_pass"), [(1 << 30, 1), (6000, 1 << 20), (4000, 2)]
)
def test_random_runs_give_the_same_plans_from_the_start_and_from_every_snapshot(
    phases: int, journal_bytes: int, blocks_a_pass: int
) -> None:
    machine = type(
        "Machine",
        (ReplayedMachine,),
        {
            "phases": phases,
            "fold": staticmethod(fold),
            "journal_bytes": journal_bytes,
            "blocks_a_pass": blocks_a_pass,
        },
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=times(8),
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.rule("journal.every-input")
@pytest.mark.parametrize("limit_bytes", [1 << 30, 4000])
def test_chunks_that_follow_measured_times_are_the_same_again(limit_bytes: int) -> None:
    journal, rig = recorded(limit_bytes=limit_bytes, requests=16, step_target_ms=150.0)
    assert rig.scheduler.pace is not None
    for segment in journal.segments:
        result = Replayer(segment).run()
        assert result.difference is None
        assert result.passes == sum(record[0] == "p" for record in segment.records)


def test_steps_have_what_cost_models_are_fitted_to() -> None:
    journal, rig = recorded(phases=1)
    steps = Replayer(journal.segments[0]).run().steps
    counters = rig.scheduler.residents.counters
    assert sum(step.prefill_tokens for step in steps) == counters.prefill_tokens
    assert sum(step.decode_rows for step in steps) == counters.decode_tokens
    assert all(step.seconds >= 0 and step.context_tokens > 0 for step in steps)


def test_a_plan_without_what_it_was_made_of_is_the_first_difference() -> None:
    journal, _ = recorded()
    segment = journal.segments[0]
    del segment.records[0]
    difference = Replayer(segment).run().difference
    assert difference is not None
    assert difference.pass_id == 1
    assert difference.recorded.chunks
    assert not difference.replayed.chunks


def test_records_that_contradict_each_other_are_refused() -> None:
    journal, _ = recorded()
    segment = journal.segments[0]
    segment.records.append(("e", 0.0, 999, "STOP", False, 1))
    with pytest.raises(JournalRejected, match="cannot follow"):
        Replayer(segment).run()


@pytest.mark.parametrize("breaks_here_too", [True, False])
def test_the_pass_in_which_an_engine_broke_is_tried_and_may_get_further(
    monkeypatch: pytest.MonkeyPatch, *, breaks_here_too: bool
) -> None:
    journal = Journal()
    rig = Rig(journal=journal)
    rig.push([1, 2, 3, 4, 5, 6], 4)
    rig.run()

    def broken(
        pool: LogicalBlockPool,
        holder: SequenceBlocks,
        sequence: Sequence,
        settings: SchedulerSettings,
    ) -> None:
        if sequence.number == 2:
            raise AssertionError("poison")
        admit_prompt(pool, holder, sequence, settings)

    monkeypatch.setattr("headrace_engine.scheduler.scheduler.admit_prompt", broken)
    rig.push([1, 2, 3, 4, 5, 7], 4)
    with pytest.raises(AssertionError, match="poison"):
        rig.step()
    journal.flush()
    if not breaks_here_too:
        # The search for a sibling, which comes next, was never recorded.
        monkeypatch.undo()
    result = Replayer(journal.segments[0]).run()
    assert result.recorded_break
    assert result.passes == rig.scheduler.passes - 1
    assert result.broke == ("AssertionError('poison')" if breaks_here_too else "")
