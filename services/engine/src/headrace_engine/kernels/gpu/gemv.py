"""One row times a matrix, for batch 1: every weight is read once, at the speed of memory.

Shapes   x[1, depth], weight[width, depth], out[1, width]; with ``gated``, weight[2 width, depth]
Dtypes   one float type; products and sums in float32
Order    one program one or two outputs; partial rows of BLOCK are added lane by lane, in order,
         then reduced by Triton's tree. It differs from cuBLAS's order: see the tolerance
Twin     reference.linear, and reference.swiglu of it; relative error below 2e-2 in bfloat16
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS
from headrace_engine.kernels.gpu.swiglu import silu_times


@triton.jit
def _gemv(
    x,
    weight,
    out,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    GATED: tl.constexpr,
    PDL: tl.constexpr,
):
    lines = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)
    lanes = tl.arange(0, BLOCK)
    real = (lines < WIDTH)[:, None]
    start = weight + lines[:, None] * DEPTH + lanes[None, :]
    # Weights depend on nothing: the first of them are asked for before the wait.
    inside = real & (lanes < DEPTH)[None, :]
    w = tl.load(start, inside, 0.0, eviction_policy="evict_first")
    if GATED:
        u = tl.load(start + WIDTH * DEPTH, inside, 0.0, eviction_policy="evict_first")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(x + lanes, lanes < DEPTH, 0.0).to(tl.float32)[None, :]
    total = w.to(tl.float32) * value
    if GATED:
        other = u.to(tl.float32) * value
    for first in range(BLOCK, DEPTH, BLOCK):
        inside = real & (first + lanes < DEPTH)[None, :]
        w = tl.load(start + first, inside, 0.0, eviction_policy="evict_first")
        value = tl.load(x + first + lanes, first + lanes < DEPTH, 0.0).to(tl.float32)[None, :]
        total += w.to(tl.float32) * value
        if GATED:
            u = tl.load(start + WIDTH * DEPTH + first, inside, 0.0, eviction_policy="evict_first")
            other += u.to(tl.float32) * value
    result = tl.sum(total, 1)
    if GATED:
        result = silu_times(result, tl.sum(other, 1), out.dtype.element_ty)
    tl.store(out + lines, result.to(out.dtype.element_ty), lines < WIDTH)


def gemv(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, gated: bool = False) -> None:
    """``out = x @ weight.T``; with ``gated``, ``silu(x @ gate.T) * (x @ up.T)``."""
    width = out.shape[1]
    depth = weight.shape[1]
    lines, block = _shape(width, depth, gated=gated)
    _gemv[(triton.cdiv(width, lines),)](
        x,
        weight,
        out,
        WIDTH=width,
        DEPTH=depth,
        LINES=lines,
        BLOCK=block,
        GATED=gated,
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        **OPTIONS,
    )


def _shape(width: int, depth: int, *, gated: bool) -> tuple[int, int]:
    """Outputs of a program and depth of one load: the best of a sweep on an H200 by shape."""
    if depth <= 1024:
        block = 512
    elif depth < 4096:
        block = 1024
    else:
        block = 2048
    if gated:
        return 1, min(block, 1024)
    return (2 if width >= 2048 and depth <= 8192 else 1), block
