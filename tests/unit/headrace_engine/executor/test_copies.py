"""Copies inside the region."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.executor.copies import run_copies
from headrace_engine.state.batch import ResolvedCopy


@pytest.mark.rule("blocks.bytes-are-opaque")
def test_copies_run_in_order() -> None:
    region = np.arange(12, dtype=np.uint8)
    run_copies(region, [ResolvedCopy(0, 4, 4), ResolvedCopy(4, 8, 4)])
    assert region.tolist() == [0, 1, 2, 3] * 3


@pytest.mark.rule("blocks.bytes-are-opaque")
def test_bytes_that_are_no_number_are_copied_as_they_are() -> None:
    region = np.zeros(32, np.uint8)
    region[:16].view(np.float32)[:] = np.nan, np.inf, -0.0, 1e-42
    before = region[:16].tobytes()
    run_copies(region, [ResolvedCopy(0, 16, 16)])
    assert region[16:].tobytes() == before
