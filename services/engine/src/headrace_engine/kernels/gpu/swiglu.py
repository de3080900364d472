"""SwiGLU: ``silu(gate) * up`` from one fused projection.

Shapes   gate_up[rows, 2 width] (gate, then up), out[rows, width]
Dtypes   one float type; the product in float32
Order    elementwise
Twin     reference.swiglu
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS

_BLOCK = 1024


@triton.jit
def silu_times(gate, up, KIND: tl.constexpr):
    """``silu(gate) * up`` in float32, of factors that are rounded to KIND."""
    gate = gate.to(KIND).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(KIND).to(tl.float32)
    return gate * up.to(KIND).to(tl.float32)


@triton.jit
def _swiglu(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < WIDTH
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    start = gate_up + row * 2 * WIDTH + columns
    kind: tl.constexpr = out.dtype.element_ty
    result = silu_times(tl.load(start, inside, 0.0), tl.load(start + WIDTH, inside, 0.0), kind)
    tl.store(out + row * WIDTH + columns, result.to(kind), inside)


def swiglu(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """``out = silu(gate_up[:, :width]) * gate_up[:, width:]``."""
    rows, width = out.shape
    _swiglu[(rows, triton.cdiv(width, _BLOCK))](
        gate_up, out, WIDTH=width, BLOCK=_BLOCK, PDL=DEPENDENT_LAUNCH, num_warps=4, **OPTIONS
    )
