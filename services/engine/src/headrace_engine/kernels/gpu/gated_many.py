"""Gate, up and SwiGLU of many rows in one launch, where arithmetic takes the time.

What it saves is what SwiGLU as a kernel of its own would write and read: gates and ups of every row. A tile of
gates and the ups that belong to it come in one load of the copy engine, which sees the weights as two
matrices, and are one product with twice the width; a thread then has both factors of its outputs. Programs go
from tile to tile, so that one's first operands come while the one before is written. Which rows and shapes
are faster so is in ``gates_many``, as a rule: see ``product``.

Shapes   x[rows, depth]; weight[2 width, depth], gates before ups; out[rows, width]; width and depth
         multiples of 128 and 64
Dtypes   one float type; products and sums in float32
Order    a program sums step by step
Twin     reference.linear and reference.swiglu of it; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from headrace_engine.kernels.gpu.card import capability
from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS
from headrace_engine.kernels.gpu.swiglu import silu_times

_ROWS: Final = 128
"""Of a tile,"""
_WIDTH: Final = 128
"""its outputs, so many gates and as many ups,"""
_STEP_BYTES: Final = 128
"""and the depth of one step: what the copy engine writes so that no two rows meet in a bank."""
_STAGES: Final = 3
"""Steps under way, 48 KiB each; with four it takes as long."""
_GROUP: Final = 16
"""Tiles of rows that programs go through together: what all of them read at once is nearly a square,
and comes from the L2 cache. With 8 and 32 it is 1 to 2 % slower."""
_WARPS: Final = 8
_MEASURED: Final = capability()[0] == 9
"""Whether the card is one on which this was seen to be faster: its tensor cores read shared memory."""
_MOST_IDLE: Final = 10
"""One part in so many of the multiprocessors' time may be idle, or go into rows that are none. With one in
six steps of 512 tokens were 5 % slower on a card that its power does not limit."""


@triton.jit(do_not_specialize=["rows"])
def _gated_many(
    inputs,
    weights,
    out,
    rows,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    tall = tl.cdiv(rows, ROWS)
    wide: tl.constexpr = WIDTH // BLOCK
    first, step = tl.program_id(0), tl.num_programs(0)
    for tile in tl.range(first, tall * wide, step, flatten=True, num_stages=STAGES):
        # Groups one after the other, each column by column.
        begin = tile // (GROUP * wide) * GROUP
        height = min(tall - begin, GROUP)
        place = tile % (GROUP * wide)
        row, column = (begin + place % height) * ROWS, place // height * BLOCK
        total = tl.zeros([ROWS, 2 * BLOCK], tl.float32)
        for at in range(0, DEPTH, STEP):
            value = inputs.load([row, at])
            both = tl.reshape(weights.load([0, column, at]), [2 * BLOCK, STEP])
            total = tl.dot(value, tl.trans(both), total, input_precision="ieee")
        gate, up = tl.split(tl.permute(tl.reshape(total, [ROWS, 2, BLOCK]), [0, 2, 1]))
        kind: tl.constexpr = out.dtype
        out.store([row, column], silu_times(gate, up, kind).to(kind))


def gates_many(rows: int, width: int, depth: int, processors: int) -> bool:
    """Whether ``gated_many`` is faster than the library's product and SwiGLU after it.

    It is where its tiles, all of one size, come out nearly even on the multiprocessors. The library
    has others to choose from.
    """
    if not _MEASURED or width % _WIDTH or depth % _STEP_BYTES:
        return False
    tiles = -(-rows // _ROWS) * (width // _WIDTH)
    turns = -(-tiles // processors)
    spent = turns * processors * _ROWS * _WIDTH
    return (spent - rows * width) * _MOST_IDLE <= spent


def gated_many(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, processors: int) -> None:
    """``silu(x @ gates.T) * (x @ ups.T)``, each factor rounded to ``out``'s type."""
    rows, width = out.shape
    depth, step = weight.shape[1], _STEP_BYTES // weight.element_size()
    tiles = -(-rows // _ROWS) * (width // _WIDTH)
    _gated_many[(min(tiles, processors),)](
        _descriptor(x, _ROWS, step),
        _descriptor(weight.view(2, width, depth), 2, _WIDTH, step),
        _descriptor(out, _ROWS, _WIDTH),
        rows,
        WIDTH=width,
        DEPTH=depth,
        ROWS=_ROWS,
        BLOCK=_WIDTH,
        STEP=step,
        GROUP=_GROUP,
        STAGES=_STAGES,
        PDL=DEPENDENT_LAUNCH,
        num_warps=_WARPS,
        **OPTIONS,
    )


def _descriptor(matrix: torch.Tensor, *tile: int) -> TensorDescriptor:
    """Tiles for the copy engine. Beyond the matrix' end zeros are read, and nothing is written."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(tile))
