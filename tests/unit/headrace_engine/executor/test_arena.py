"""The region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.arena import allocate_region, memory_limit


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


def test_a_region_that_could_never_be_filled_is_refused() -> None:
    with pytest.raises(
        ModelRejected, match=r"a KV cache of 1048576\.00 GiB is larger than the .* GiB"
    ):
        allocate_region(1 << 50)


def test_a_container_has_what_its_group_may_use(tmp_path: Path) -> None:
    whole = memory_limit([])
    assert whole > 1 << 28
    (tmp_path / "group").write_text("268435456\n")
    (tmp_path / "none").write_text("max\n")
    assert memory_limit([tmp_path / "none", tmp_path / "absent"]) == whole
    assert memory_limit([tmp_path / "group", tmp_path / "none"]) == 1 << 28
