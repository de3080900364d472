"""What every launch shares."""

from __future__ import annotations

import pytest
from headrace_engine.kernels.gpu.launch import power_of_two

pytestmark = pytest.mark.torch


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
