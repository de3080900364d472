"""Gate, up and SwiGLU of many rows, against float32; and for which rows they are one launch."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import gated_many as module
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.gated_many import gated_many, gates_many
from support.gpu import DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "width", "processors"),
    [(1, 128, 4), (128, 256, 1), (300, 384, 4), (17 * 128 + 1, 256, 3)],
)
def test_it_is_the_projection_and_swiglu_in_one(
    dtype: torch.dtype, rows: int, width: int, processors: int
) -> None:
    x = random(rows, 192, dtype=dtype)
    weight = random(2 * width, 192, dtype=dtype, seed=1) * 0.05
    beyond = poisoned(rows + 1, width, dtype=dtype)
    gated_many(x, weight, beyond[:rows], processors)
    expected = reference.swiglu(reference.linear(x, weight).to(dtype))
    assert relative_error(beyond[:rows], expected) < TOLERANCE[dtype]
    assert beyond[rows].isnan().all(), "rows that only fill a tile up are written nowhere"


def test_tiles_that_leave_multiprocessors_idle_are_the_librarys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MEASURED", True)

    def chosen(width: int, depth: int) -> list[int]:
        sizes = (192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 4096, 8448)
        return [rows for rows in sizes if gates_many(rows, width, depth, 132)]

    assert chosen(14336, 4096) == [896, 1024, 1280, 1536, 2048, 4096, 8448]
    assert chosen(3072, 1024) == [640, 1280, 2048, 4096, 8448]
    assert not gates_many(4096, 14336 + 64, 4096, 132)
    assert not gates_many(4096, 14336, 4096 + 32, 132)


def test_a_card_on_which_it_was_never_measured_has_the_librarys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MEASURED", False)
    assert not gates_many(4096, 14336, 4096, 132)
