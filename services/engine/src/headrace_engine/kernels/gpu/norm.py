"""Residual addition and RMSNorm in one pass over a row.

Shapes   delta[rows, width], or its float32 parts[count, rows, width]; residual[rows, width],
         weight[width], out[rows, width]; row-major
Dtypes   one 16- or 32-bit float type; sums and the norm in float32
Order    one program a row; the sum of squares is Triton's tree over the padded row
Twin     reference.residual_norm, exact up to one unit in the last place
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two


@triton.jit
def _residual_norm(
    delta,
    residual,
    weight,
    out,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    scale = tl.load(weight + columns, inside, 0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    at = row * WIDTH + columns
    value = tl.load(residual + at, inside, 0.0)
    if ADD:
        added = tl.load(delta + at, inside, 0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            added += tl.load(delta + part * tl.num_programs(0) * WIDTH + at, inside, 0.0)
        total = value.to(tl.float32) + added.to(residual.dtype.element_ty).to(tl.float32)
        value = total.to(residual.dtype.element_ty)
        tl.store(residual + at, value, inside)
    wide = value.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    normed = (wide * inverse).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (normed * scale).to(out.dtype.element_ty), inside)


def residual_norm(
    delta: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    epsilon: float,
) -> None:
    """``residual += delta`` (unless None), then ``out = rms_norm(residual) * weight``.

    ``delta`` in parts is summed and rounded to the residual's type first.
    """
    rows, width = residual.shape
    block = power_of_two(width)
    _residual_norm[(rows,)](
        residual if delta is None else delta,
        residual,
        weight,
        out,
        epsilon,
        WIDTH=width,
        BLOCK=block,
        ADD=delta is not None,
        PARTS=delta.shape[0] if delta is not None and delta.ndim == 3 else 1,
        PDL=DEPENDENT_LAUNCH,
        num_warps=min(16, max(1, block // 256)),
        **OPTIONS,
    )
