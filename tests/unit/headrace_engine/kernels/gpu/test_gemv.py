"""One row times a matrix against float32."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.gemv import gemv
from support.gpu import DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "depth"), [(5, 64), (7, 576), (3, 2500)])
def test_gemv_equals_the_product(dtype: torch.dtype, width: int, depth: int) -> None:
    x, weight = random(1, depth, dtype=dtype), random(width, depth, dtype=dtype, seed=1)
    out = poisoned(1, width, dtype=dtype)
    gemv(x, weight, out)
    assert relative_error(out, reference.linear(x, weight)) < TOLERANCE[dtype]
    wide = poisoned(1, width, dtype=torch.float32)
    gemv(x, weight, wide)
    assert relative_error(wide, reference.linear(x, weight)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_gemv_is_the_projection_and_swiglu_in_one(dtype: torch.dtype) -> None:
    x, weight = random(1, 576, dtype=dtype), random(22, 576, dtype=dtype, seed=1) * 0.05
    out = poisoned(1, 11, dtype=dtype)
    gemv(x, weight, out, gated=True)
    expected = reference.swiglu(reference.linear(x, weight).to(dtype))
    assert relative_error(out, expected) < TOLERANCE[dtype]
