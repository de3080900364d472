"""Cost models: linear, and found again from what they cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from headrace_engine.scheduler.journal_replay import Step
from headrace_engine.scheduler.simulate.cost import CostModel, fit


def steps(cost: CostModel, count: int = 200) -> list[Step]:
    random = np.random.default_rng(1)
    made = [
        Step(int(random.integers(0, 64)), int(random.integers(0, 512)),
             int(random.integers(0, 100_000)), 0.0)
        for _ in range(count)
    ]  # fmt: skip
    return [replace(step, seconds=cost.seconds(step)) for step in made]


def test_the_model_behind_exact_times_is_found() -> None:
    cost = CostModel(0.003, 1e-5, 4e-5, 2e-9)
    found = fit(steps(cost))
    assert found.base_s == pytest.approx(cost.base_s)
    assert found.decode_row_s == pytest.approx(cost.decode_row_s)
    assert found.prefill_token_s == pytest.approx(cost.prefill_token_s)
    assert found.context_token_s == pytest.approx(cost.context_token_s)


def test_no_part_is_below_zero() -> None:
    falling = [replace(step, seconds=1.0 - step.decode_rows / 100) for step in steps(CostModel())]
    found = fit(falling)
    assert min(found.base_s, found.decode_row_s, found.prefill_token_s) >= 0
    assert found.decode_row_s == 0


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="7 batches"):
        fit(steps(CostModel(), 7))
