"""Figures: fairness, and tables that show differences."""

from __future__ import annotations

import pytest
from headrace_engine.scheduler.simulate.simulator import Simulation
from headrace_engine.scheduler.simulate.summary import Column, fairness, summarize, table


@pytest.mark.parametrize(
    ("served", "index"),
    [({}, None), ({"a": 5.0}, None), ({"a": 5.0, "b": 5.0}, 1.0), ({"a": 9.0, "b": 0.0}, 0.5)],
)
def test_jains_index(served: dict[str, float], index: float | None) -> None:
    assert fairness(served) == index


def test_a_simulation_of_nothing_has_no_figures_but_counts() -> None:
    figures = summarize(Simulation([]))
    assert figures["requests"] == 0
    assert figures["ttft_ms_p50"] is None
    assert figures["tokens_per_s"] is None


def test_two_columns_have_a_third_with_the_difference() -> None:
    before = {"passes": 10, "ttft_ms_p50": 20.0, "evictions": 0, "fairness_index": None}
    after = {"passes": 15, "ttft_ms_p50": 20.0, "evictions": 3, "fairness_index": 1.0}
    lines = table([Column("before", before), Column("after", after)]).splitlines()
    assert lines[0].split() == ["before", "after", "difference"]
    assert lines[1].split() == ["passes", "10", "15", "+50.0%"]
    assert lines[2].split() == ["ttft_ms_p50", "20.000", "20.000"]
    assert lines[3].split() == ["evictions", "0", "3", "+3"]
    assert lines[4].split() == ["fairness_index", "-", "1.000", "-"]
