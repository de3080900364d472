"""Norms, embeddings and SwiGLU against their twins."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.embed import embed_norm
from headrace_engine.kernels.gpu.norm import residual_norm
from headrace_engine.kernels.gpu.swiglu import swiglu
from support.gpu import DEVICE, DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 576), (5, 1000)])
@pytest.mark.parametrize("add", [True, False])
def test_residual_norm_adds_and_normalizes(
    dtype: torch.dtype, rows: int, width: int, add: bool
) -> None:
    delta = random(rows, width, dtype=dtype, seed=1) if add else None
    residual = random(rows, width, dtype=dtype, seed=2) * 3
    weight = random(width, dtype=dtype, seed=3)
    expected, normed = reference.residual_norm(delta, residual, weight, 1e-5)
    out = poisoned(rows, width, dtype=dtype)
    residual_norm(delta, residual, weight, out, 1e-5)
    assert torch.equal(residual, expected)
    assert relative_error(out, normed) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_embed_norm_gathers_rows(dtype: torch.dtype) -> None:
    table, weight = random(50, 96, dtype=dtype), random(96, dtype=dtype, seed=1)
    tokens = torch.tensor([3, 49, 0, 3], dtype=torch.int32, device=DEVICE)
    residual, out = poisoned(4, 96, dtype=dtype), poisoned(4, 96, dtype=dtype)
    embed_norm(tokens, table, weight, residual, out, 1e-6)
    rows, normed = reference.embed_norm(tokens, table, weight, 1e-6)
    assert torch.equal(residual, rows)
    assert relative_error(out, normed) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 32), (3, 1536), (2, 1100)])
def test_swiglu_multiplies_the_activated_gate(dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = random(rows, 2 * width, dtype=dtype)
    out = poisoned(rows, width, dtype=dtype)
    swiglu(gate_up, out)
    assert relative_error(out, reference.swiglu(gate_up)) < TOLERANCE[dtype]
