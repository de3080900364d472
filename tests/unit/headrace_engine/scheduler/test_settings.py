"""SchedulerSettings: what cannot work is refused with the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.scheduler.settings import SchedulerSettings


def test_the_defaults_work() -> None:
    settings = SchedulerSettings()
    assert settings.pool_tokens == settings.pool_blocks * settings.block_tokens


@pytest.mark.rule("sched.budget-is-not-memory")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_batch": 0}, "max_batch is 0"),
        ({"pool_blocks": -1}, "pool_blocks is -1"),
        ({"phases": 3}, "phases is 3"),
        ({"prefill_chunk_tokens": 8, "block_tokens": 16}, "less than one block of 16"),
        ({"batch_tokens": 100, "max_batch": 64, "prefill_chunk_tokens": 64}, "batch_tokens is 100"),
        ({"step_target_ms": 0.0}, "step_target_ms is 0.0"),
        ({"tenant_weights": {"a": 0.0}}, "weight of tenant 'a'"),
        ({"tenant_weights": {"a": float("nan")}}, "weight of tenant 'a'"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SchedulerSettings(**changes)
