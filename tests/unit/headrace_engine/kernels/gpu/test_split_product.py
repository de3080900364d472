"""Products of a few rows in parts, and the norm that adds the parts up, against float32."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.norm import residual_norm
from headrace_engine.kernels.gpu.split_product import split_product, splits_of
from support.gpu import DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "splits"), [(2, 1), (17, 2)])
def test_parts_add_up_to_the_product(dtype: torch.dtype, rows: int, splits: int) -> None:
    x, weight = random(rows, 256, dtype=dtype), random(128, 256, dtype=dtype, seed=1)
    parts = poisoned(splits, rows, 128, dtype=torch.float32)
    split_product(x, weight, parts)
    assert relative_error(parts.sum(0), reference.linear(x, weight)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_adds_parts_and_rounds_their_sum(dtype: torch.dtype) -> None:
    parts = random(3, 2, 96, dtype=torch.float32)
    residual, weight = random(2, 96, dtype=dtype, seed=1), random(96, dtype=dtype, seed=2)
    delta = ((parts[0] + parts[1]) + parts[2]).to(dtype)
    expected, normed = reference.residual_norm(delta, residual, weight, 1e-5)
    out = poisoned(2, 96, dtype=dtype)
    residual_norm(parts, residual, weight, out, 1e-5)
    assert torch.equal(residual, expected)
    assert relative_error(out, normed) < TOLERANCE[dtype]


def test_the_depth_is_split_until_two_programs_a_multiprocessor_exist() -> None:
    assert splits_of(4096, 14336, 132) == 4
    assert splits_of(1024, 3072, 132) == 8
    assert splits_of(4096, 4000, 132) == 0
    assert splits_of(100, 4096, 132) == 0
