"""A few rows times a matrix, its depth split over programs: partial sums for the norm that follows.

For 2 to MOST_ROWS rows a product waits for memory alone. Programs ask for their weights before they
wait for the kernel before, and what their sums would cost a launch of its own is done by
``residual_norm``, which reads them anyway.

Shapes   x[rows, depth], weight[width, depth], parts[splits, rows, width] float32
Dtypes   x and weight of one float type; products and sums in float32
Order    a program sums tile by tile; whoever reads ``parts`` adds them in order
Twin     reference.linear; relative error below 1e-2 in bfloat16 once summed
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two

MOST_ROWS: Final = 64
MOST_SPLITS: Final = 8
_WIDTH: Final = 64
"""Outputs of a program."""
_DEPTH: Final = 128
"""Of one step of a program."""
_FETCHED: Final = 1024
"""Bytes of each output's weights that are asked for before the wait."""
_IN_FLIGHT: Final = 96 << 10
"""Bytes of operands that a program has under way."""


@triton.jit
def _ask_for_rows(base, stride, size, count):
    """Asks for ``size`` bytes at each of ``count`` addresses ``stride`` bytes apart, a thread each.

    They come to the L2 cache; sizes and addresses are multiples of 16. For sm_90 and later.
    """
    zero = tl.program_id(0) * 0
    tl.inline_asm_elementwise(
        """{
        .reg .pred mine;
        .reg .u32 lane;
        .reg .u64 address;
        mov.u32 lane, %tid.x;
        setp.lt.u32 mine, lane, $4;
        cvt.u64.u32 address, lane;
        mad.lo.u64 address, address, $2, $1;
        mov.u32 $0, 0;
        @mine cp.async.bulk.prefetch.L2.global [address], $3;
        }""",
        "=r,l,l,r,r",
        [base.to(tl.int64), (zero + stride).to(tl.int64), zero + size, zero + count],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["rows"])
def _split_product(
    x,
    weight,
    parts,
    rows,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    STAGES: tl.constexpr,
    FETCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK
    split = tl.program_id(1)
    share: tl.constexpr = DEPTH // SPLITS
    outputs = tl.arange(0, BLOCK)
    row = tl.arange(0, ROWS)
    lanes = tl.arange(0, STEP)
    base = weight + first.to(tl.int64) * DEPTH + split * share
    if PDL:
        gdc_launch_dependents()
        item: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        _ask_for_rows(base, DEPTH * item, FETCHED, BLOCK)
        gdc_wait()
    real = row < rows
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    left = base + outputs[:, None] * DEPTH + lanes[None, :]
    right = x + row[:, None] * DEPTH + (split * share + lanes)[None, :]
    for at in tl.range(0, share, STEP, num_stages=STAGES):
        w = tl.load(left + at, eviction_policy="evict_first")
        value = tl.load(right + at, real[:, None], 0.0)
        total = tl.dot(w, tl.trans(value), total, input_precision="ieee")
    place = parts + split * rows * WIDTH + row[None, :] * WIDTH + (first + outputs)[:, None]
    tl.store(place, total, real[None, :])


def splits_of(width: int, depth: int, processors: int) -> int:
    """Into how many parts the depth is cut; 0 where the shape does not suit this kernel."""
    if width % _WIDTH:
        return 0
    for splits in (MOST_SPLITS, 4, 2, 1):
        if depth % (splits * _DEPTH) == 0 and width // _WIDTH * splits <= 2 * processors:
            return splits
    return 0


def split_product(x: torch.Tensor, weight: torch.Tensor, parts: torch.Tensor) -> None:
    """``parts.sum(0) = x @ weight.T`` for at most MOST_ROWS rows."""
    splits, rows, width = parts.shape
    padded = max(16, power_of_two(rows))
    step_bytes = (_WIDTH + padded) * _DEPTH * weight.element_size()
    _split_product[(width // _WIDTH, splits)](
        x,
        weight,
        parts,
        rows,
        WIDTH=width,
        DEPTH=weight.shape[1],
        SPLITS=splits,
        ROWS=padded,
        BLOCK=_WIDTH,
        STEP=_DEPTH,
        STAGES=max(2, min(6, _IN_FLIGHT // step_bytes)),
        FETCHED=min(_FETCHED, weight.shape[1] // splits * weight.element_size()),
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        **OPTIONS,
    )
