"""Some rows times a matrix, where that waits for memory more than for arithmetic.

Three forms. ``product`` is the plain one. ``split_product`` cuts the depth over programs and leaves
partial sums, which the norm that follows adds up: it reads them anyway. ``gated_product`` is gate, up
and SwiGLU in one. Operands come by the copy engine (TMA). None of them waits for the end of the kernel
before to begin, and until that end they ask for weights, which is half of what they gain. Where one is
slower than the library's product on an H200, ``multiplies``, ``splits_of`` and ``gates`` say so.

Shapes   x[rows, depth]; weight[width, depth], out[rows, width]; in parts[splits, rows, width] float32;
         gated, with weight[2 width, depth], gates before ups
Dtypes   x, weight and out of one float type; products and sums in float32
Order    a program sums tile by tile; whoever reads ``parts`` adds them in order
Twin     reference.linear, and reference.swiglu of it; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, MEMORY, OPTIONS, power_of_two
from headrace_engine.kernels.gpu.swiglu import silu_times

MOST_ROWS: Final = 128
"""Of all products here. Beyond, arithmetic is what takes the time: see ``gated_many``."""
MOST_SPLITS: Final = 8
_SMALL: Final = 4 << 20
"""Items at most of a matrix that is read faster than kernels start one after the other."""
_WIDTH: Final = 64
"""Outputs of a program, and the narrower one of a gated product."""
_DEPTH: Final = 128
"""Of one step of a program,"""
_GATED_DEPTH: Final = 64
"""and of a gated one."""
_LEAST_STEPS: Final = 3
"""Of a program, where the depth is cut."""
_MOST_STAGES: Final = 6
_FETCHED: Final = 1024
"""Bytes of each output's weights that are asked for before the wait."""
_IN_FLIGHT: Final = 196 << 10
"""Bytes of operands that a program has under way, where it is alone on its multiprocessor."""


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
def _product(
    inputs,
    weights,
    weight,
    out,
    rows,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    SPLITS: tl.constexpr,
    GATED: tl.constexpr,
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
    if PDL:
        gdc_launch_dependents()
        item: tl.constexpr = weight.dtype.element_ty.primitive_bitwidth // 8
        base = weight + first.to(tl.int64) * DEPTH + split * share
        _ask_for_rows(base, DEPTH * item, FETCHED, BLOCK)
        if GATED:
            _ask_for_rows(base + WIDTH * DEPTH, DEPTH * item, FETCHED, BLOCK)
        gdc_wait()
    # Weights are the tall side of the products and rows the narrow one, which may be 16 wide.
    total = tl.zeros([BLOCK, ROWS], tl.float32)
    if GATED:
        other = tl.zeros([BLOCK, ROWS], tl.float32)
    for at in tl.range(split * share, split * share + share, STEP, num_stages=STAGES):
        value = tl.trans(inputs.load([0, at]))
        total = tl.dot(weights.load([first, at]), value, total, input_precision="ieee")
        if GATED:
            up = weights.load([first + WIDTH, at])
            other = tl.dot(up, value, other, input_precision="ieee")
    if GATED:
        total = silu_times(total, other, out.dtype.element_ty)
    row = tl.arange(0, ROWS)
    place = row[None, :] * WIDTH + (first + tl.arange(0, BLOCK))[:, None]
    out += split * rows * WIDTH
    tl.store(out + place, total.to(out.dtype.element_ty), (row < rows)[None, :])


def multiplies(rows: int, width: int, depth: int, processors: int) -> bool:
    """Whether ``product`` is faster than the library's."""
    most = MOST_ROWS if width * depth <= _SMALL else MOST_ROWS // 2
    fits = width % _WIDTH == 0 and depth % _DEPTH == 0
    return fits and 1 < rows <= most and width // _WIDTH <= 2 * processors


def splits_of(rows: int, width: int, depth: int, processors: int) -> int:
    """Into how many parts the depth is cut; 0 where the library's product is the faster one."""
    fits = width % _WIDTH == 0 and depth % _DEPTH == 0
    if not fits or not 1 < rows <= MOST_ROWS or width // _WIDTH > 2 * processors:
        return 0
    if MOST_ROWS // 2 < rows <= MOST_ROWS * 3 // 4 and width * depth > _SMALL:
        # Programs take rows in powers of two, the library in finer steps.
        return 0
    for splits in (MOST_SPLITS, 4, 2):
        steps, rest = divmod(depth, splits * _DEPTH)
        if not rest and steps >= _LEAST_STEPS and width // _WIDTH * splits <= processors:
            return splits
    return 1


def gates(rows: int, width: int, depth: int, processors: int) -> bool:
    """Whether ``gated_product`` is faster than the library's product and SwiGLU after it.

    It is not where many rows meet programs, each with all of the depth, that leave multiprocessors
    idle.
    """
    fits = width % _WIDTH == 0 and depth % _GATED_DEPTH == 0
    most = MOST_ROWS if width // _WIDTH >= processors else MOST_ROWS // 2
    return fits and 1 < rows <= most


def product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """``out = x @ weight.T``."""
    _launch(x, weight, out, splits=1, block=_WIDTH, step=_DEPTH, gated=False)


def split_product(x: torch.Tensor, weight: torch.Tensor, parts: torch.Tensor) -> None:
    """``parts.sum(0) = x @ weight.T``."""
    splits = parts.shape[0]
    _launch(x, weight, parts, splits=splits, block=_WIDTH, step=_DEPTH, gated=False)


def gated_product(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """``silu(x @ gates.T) * (x @ ups.T)``, each factor rounded to ``out``'s type."""
    # Many rows are read from the L2 cache by each program: fewer, wider programs then.
    wide = x.shape[0] > MOST_ROWS // 2 and out.shape[1] % (2 * _WIDTH) == 0
    block = 2 * _WIDTH if wide else _WIDTH
    _launch(x, weight, out, splits=1, block=block, step=_GATED_DEPTH, gated=True)


_SPARE: Final = 3 << 10
"""Bytes of shared memory that operands leave to barriers."""
_LEAST_STEP: Final = 16
"""Depth of a step, where the card has little room."""


class Tiling(NamedTuple):
    """How a program goes through its operands."""

    block: int
    """Outputs,"""
    step: int
    """depth of a step,"""
    stages: int
    """and steps under way, two at least."""


def tiling(
    rows: int, depth: int, item: int, *, block: int, step: int, gated: bool, memory: int
) -> Tiling:
    """What fits in ``memory`` bytes of shared memory, of ``rows`` rows (a power of two) and a program's
    ``depth``, in items of ``item`` bytes; ``block`` and ``step`` or less of them."""
    room = min(_IN_FLIGHT, memory - _SPARE)

    def size() -> int:
        return (block * (1 + gated) + rows) * step * item

    if 2 * size() > room and block > _WIDTH:
        block = _WIDTH
    while 2 * size() > room and step > _LEAST_STEP:
        step //= 2
    stages = min(4 if gated else _MOST_STAGES, depth // step, room // size())
    return Tiling(block, step, max(2, stages))


def _launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    splits: int,
    block: int,
    step: int,
    gated: bool,
) -> None:
    rows, width = out.shape[-2:]
    depth, item = weight.shape[1], weight.element_size()
    tile = max(16, power_of_two(rows))
    block, step, stages = tiling(
        tile, depth // splits, item, block=block, step=step, gated=gated, memory=MEMORY
    )
    _product[(width // block, splits)](
        _descriptor(x, tile, step),
        _descriptor(weight, block, step),
        weight,
        out,
        rows,
        WIDTH=width,
        DEPTH=depth,
        SPLITS=splits,
        GATED=gated,
        ROWS=tile,
        BLOCK=block,
        STEP=step,
        STAGES=stages,
        FETCHED=min(_FETCHED, depth // splits * item),
        PDL=DEPENDENT_LAUNCH,
        num_warps=block // 16,
        **OPTIONS,
    )


def _descriptor(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Tiles of a matrix for the copy engine. Rows beyond its end are read as zeros."""
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns])
