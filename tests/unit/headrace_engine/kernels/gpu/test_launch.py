"""Where compiled kernels are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.kernels.gpu.launch import keep_kernels, power_of_two
from triton import knobs

pytestmark = pytest.mark.torch


def test_kernels_are_kept_where_they_survive_unless_the_environment_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cache, "dir", "before")
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    keep_kernels(tmp_path)
    assert knobs.cache.dir == "before"
    monkeypatch.delenv("TRITON_CACHE_DIR")
    keep_kernels(tmp_path)
    assert knobs.cache.dir == str(tmp_path)


def test_powers_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 8, 9)] == [1, 2, 4, 8, 16]
