"""Products in parts and gated products, and the norm that adds parts up, against float32."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.norm import residual_norm
from headrace_engine.kernels.gpu.product import (
    gated_product,
    gates,
    multiplies,
    product,
    split_product,
    splits_of,
    tiling,
)
from support.gpu import DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_is_the_plain_one(dtype: torch.dtype) -> None:
    x, weight = random(19, 256, dtype=dtype), random(128, 256, dtype=dtype, seed=1)
    out = poisoned(19, 128, dtype=dtype)
    product(x, weight, out)
    assert relative_error(out, reference.linear(x, weight)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "splits"), [(2, 1), (17, 2)])
def test_parts_add_up_to_the_product(dtype: torch.dtype, rows: int, splits: int) -> None:
    x, weight = random(rows, 256, dtype=dtype), random(128, 256, dtype=dtype, seed=1)
    parts = poisoned(splits, rows, 128, dtype=torch.float32)
    split_product(x, weight, parts)
    assert relative_error(parts.sum(0), reference.linear(x, weight)) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 65])
def test_a_gated_product_is_the_projection_and_swiglu_in_one(dtype: torch.dtype, rows: int) -> None:
    x = random(rows, 128, dtype=dtype)
    weight = random(256, 128, dtype=dtype, seed=1) * 0.05
    out = poisoned(rows, 128, dtype=dtype)
    gated_product(x, weight, out)
    expected = reference.swiglu(reference.linear(x, weight).to(dtype))
    assert relative_error(out, expected) < TOLERANCE[dtype]


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


def test_the_depth_is_split_until_every_multiprocessor_has_a_program() -> None:
    assert splits_of(32, 4096, 14336, 132) == 2
    assert splits_of(32, 1024, 3072, 132) == 8
    assert splits_of(32, 1024, 2048, 132) == 4, "three steps a program at least"
    assert splits_of(32, 4096, 4000, 132) == 0
    assert splits_of(32, 100, 4096, 132) == 0


def test_what_the_library_does_faster_is_left_to_it() -> None:
    large = [splits_of(rows, 4096, 4096, 132) for rows in (1, 2, 64, 65, 96, 97, 128, 129)]
    assert large == [0, 2, 2, 0, 0, 2, 2, 0]
    assert [splits_of(rows, 1024, 3072, 132) for rows in (1, 2, 96, 128, 129)] == [0, 8, 8, 8, 0]


def test_gated_products_are_for_some_rows_and_many_outputs() -> None:
    chosen = [rows for rows in (1, 2, 128, 129) if gates(rows, 14336, 4096, 132)]
    assert chosen == [2, 128]
    few = [rows for rows in (2, 64, 65) if gates(rows, 3072, 1024, 132)]
    assert few == [2, 64], "48 programs leave most multiprocessors idle"


def test_plain_products_are_for_few_rows_or_small_matrices() -> None:
    assert [rows for rows in (1, 2, 64, 65) if multiplies(rows, 6144, 4096, 132)] == [2, 64]
    assert [rows for rows in (2, 128, 129) if multiplies(rows, 4096, 1024, 132)] == [2, 128]
    assert not multiplies(2, 28672, 4096, 132)


def test_an_h200_has_operands_of_192_kib_under_way() -> None:
    def plain(rows: int) -> tuple[int, int, int]:
        return tiling(rows, 4096, 2, block=64, step=128, gated=False, memory=227 << 10)

    assert [plain(rows) for rows in (16, 64, 128)] == [(64, 128, 6), (64, 128, 6), (64, 128, 4)]
    assert tiling(64, 4096, 2, block=64, step=64, gated=True, memory=227 << 10) == (64, 64, 4)
    assert tiling(128, 4096, 2, block=128, step=64, gated=True, memory=227 << 10) == (128, 64, 4)
    short = tiling(16, 256, 2, block=64, step=128, gated=False, memory=227 << 10)
    assert short.stages == 2, "no more than there are steps"


@pytest.mark.parametrize("memory", [99 << 10, 163 << 10, 227 << 10])
@pytest.mark.parametrize("item", [2, 4])
@pytest.mark.parametrize("rows", [16, 32, 64, 128])
@pytest.mark.parametrize(
    ("block", "step", "gated"), [(64, 128, False), (64, 64, True), (128, 64, True)]
)
def test_operands_under_way_fit_in_the_card(
    memory: int, item: int, rows: int, block: int, step: int, gated: bool
) -> None:
    found = tiling(rows, 4096, item, block=block, step=step, gated=gated, memory=memory)
    assert found.stages >= 2
    assert block % found.block == step % found.step == 0
    tile = (found.block * (1 + gated) + rows) * found.step * item
    assert found.stages * tile < memory
