"""Arithmetic of measurements."""

from __future__ import annotations

import math

import pytest
from headrace_cli.timings import Answer, percentile, report


@pytest.mark.parametrize(
    ("share", "wanted"), [(0.0, 1.0), (0.5, 5.0), (0.9, 9.0), (0.99, 10.0), (1.0, 10.0)]
)
def test_a_percentile_is_a_value_that_was_measured(share: float, wanted: float) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], share) == wanted


def test_a_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


def test_first_token_and_gaps_are_told_apart() -> None:
    answer = Answer(sent_s=1.0, arrivals_s=(1.5, 1.75, 2.25), tokens=3)
    assert answer.first_s == 0.5
    assert answer.gaps_s == [0.25, 0.5]


def test_the_report_counts_tokens_of_all_answers_over_the_wall() -> None:
    answers = [Answer(0.0, (0.1, 0.2), 5), Answer(0.0, (0.3,), 3)]
    text = report(answers, 2.0)
    assert text.startswith("2 requests, 8 tokens out in 2.00 s: 4.0 tokens/s\n")
    assert text.splitlines()[2].split() == ["first", "token", "100.0", "300.0", "300.0", "300.0"]
