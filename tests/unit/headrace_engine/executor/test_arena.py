"""The region."""

from __future__ import annotations

import numpy as np
from headrace_engine.executor.arena import allocate_region


def test_a_region_is_zero_writable_and_aligned() -> None:
    region = allocate_region(100_001)
    assert region.shape == (100_001,)
    assert region.ctypes.data % 4096 == 0
    assert not region.any()
    region[-1] = 7
    assert region[-1] == 7


def test_an_empty_region_is_possible() -> None:
    assert allocate_region(0).shape == (0,)
    assert allocate_region(0).dtype == np.uint8
