"""One table of what sampling may be: whoever asks gets the same words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from headrace_contracts.codes import Code
from headrace_engine.errors import RequestRejected
from headrace_engine.state.request import Sampling
from headrace_engine.state.sampling import REAL_BOUNDS, check_counts, check_sampling

VOCABULARY = 100
GOOD = Sampling(max_new_tokens=4)


def refusal(**changes: Any) -> str:
    """Why changed sampling is refused."""
    with pytest.raises(RequestRejected) as caught:
        check_sampling(replace(GOOD, **changes), VOCABULARY)
    assert caught.value.code is Code.INVALID_REQUEST
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(REAL_BOUNDS))
def test_each_real_field_has_its_bounds_and_is_finite(name: str) -> None:
    least, most = REAL_BOUNDS[name]
    for outside in (least - 0.5, most + 0.5, math.nan, math.inf, -math.inf):
        assert name in refusal(**{name: outside})
    inside = (least if name != "repetition_penalty" else 0.5, min(most, 1e9))
    for value in inside:
        check_sampling(replace(GOOD, **{name: value}), VOCABULARY)


def test_a_repetition_penalty_of_nothing_divides_by_it() -> None:
    assert "repetition_penalty is 0" in refusal(repetition_penalty=0.0)


def test_edges_are_inside() -> None:
    check_sampling(
        replace(
            GOOD,
            min_new_tokens=4,
            logprobs=20,
            stop_token_ids=frozenset({0, VOCABULARY - 1}),
            bias_ids=(0, VOCABULARY - 1),
            bias_values=(-1e30, 1e30),
        ),
        VOCABULARY,
    )


def test_lists_are_counted_as_they_were_sent() -> None:
    check_counts(1024, 1024, 64)
    for counts in ((1025, 1025, 0), (0, 0, 65), (1, 0, 0)):
        with pytest.raises(RequestRejected):
            check_counts(*counts)
