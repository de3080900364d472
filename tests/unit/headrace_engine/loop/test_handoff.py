"""Outputs go first where the loop has time, and nowhere else."""

from __future__ import annotations

import pytest
from headrace_engine.loop import thread
from headrace_engine.loop.handoff import NAP_S, UNHURRIED_S, give_way
from support.engine import Rig


@pytest.mark.rule("loop.outputs-first")
@pytest.mark.parametrize(
    ("waited_s", "runs_on", "naps"),
    [
        (UNHURRIED_S, True, [NAP_S]),
        (0.02, True, [NAP_S]),
        (0.004, True, []),
        (0.02, False, []),
    ],
)
def test_it_sleeps_only_ahead_of_a_busy_executor(
    waited_s: float, runs_on: bool, naps: list[float]
) -> None:
    slept: list[float] = []
    give_way(waited_s, runs_on=runs_on, sleep=slept.append)
    assert slept == naps


@pytest.mark.rule("loop.outputs-first")
@pytest.mark.parametrize(("phases", "runs_on"), [(2, True), (1, False)])
def test_the_loop_gives_way_after_it_told_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, phases: int, runs_on: bool
) -> None:
    rig = Rig(phases=phases)
    asked: list[bool] = []

    def noted(waited_s: float, *, runs_on: bool) -> None:
        assert waited_s >= 0
        asked.append(runs_on)

    monkeypatch.setattr(thread, "give_way", noted)
    handle = rig.push([1, 2, 3], 5)
    while len(rig.tokens(handle)) < 2:
        rig.step()
    assert set(asked) == {runs_on}
    rig.run()
