"""Embedding rows of token ids, and the first layer's RMSNorm of them.

Shapes   tokens[rows] int32, table[vocabulary, width], residual[rows, width], out[rows, width]
Dtypes   one float type; the norm in float32
Order    as in ``norm``
Twin     reference.embed_norm
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two


@triton.jit
def _embed_norm(
    tokens,
    table,
    weight,
    residual,
    out,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < WIDTH
    scale = tl.load(weight + columns, inside, 0.0).to(tl.float32)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(tokens + row).to(tl.int64)
    value = tl.load(table + token * WIDTH + columns, inside, 0.0)
    at = row * WIDTH + columns
    tl.store(residual + at, value, inside)
    wide = value.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + epsilon)
    normed = (wide * inverse).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + at, (normed * scale).to(out.dtype.element_ty), inside)


def embed_norm(
    tokens: torch.Tensor,
    table: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor,
    epsilon: float,
) -> None:
    """``residual = table[tokens]``; ``out = rms_norm(residual) * weight``."""
    rows, width = residual.shape
    block = power_of_two(width)
    _embed_norm[(rows,)](
        tokens,
        table,
        weight,
        residual,
        out,
        epsilon,
        WIDTH=width,
        BLOCK=block,
        PDL=DEPENDENT_LAUNCH,
        num_warps=min(16, max(1, block // 256)),
        **OPTIONS,
    )
