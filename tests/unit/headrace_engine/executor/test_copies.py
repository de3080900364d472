"""Copies inside the region."""

from __future__ import annotations

import numpy as np
from headrace_engine.executor.copies import run_copies
from headrace_engine.state.batch import ResolvedCopy


def test_copies_run_in_order() -> None:
    region = np.arange(12, dtype=np.uint8)
    run_copies(region, [ResolvedCopy(0, 4, 4), ResolvedCopy(4, 8, 4)])
    assert region.tolist() == [0, 1, 2, 3] * 3
