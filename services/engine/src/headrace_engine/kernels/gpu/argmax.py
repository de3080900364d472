"""Greedy choice: the largest logit of each row, in two stages so that the row is read by many.

Shapes   logits[rows, vocabulary] float32; queries[rows], slots[tokens] int32
         best[rows, chunks] float32 and where[rows, chunks] int32 scratch
         chosen[rows] int32, failed[rows] int32, last[slots + 1] int32
Order    equal logits: the smallest id wins. A row with a NaN or an infinity is failed, token 0
Twin     reference.greedy, exact
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two

CHUNK = 4096
"""Logits of one program of the first stage."""


@triton.jit
def _chunk_argmax(
    logits, best, where, VOCABULARY: tl.constexpr, CHUNK: tl.constexpr, PDL: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = ids < VOCABULARY
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(logits + row * VOCABULARY + ids, inside, float("-inf"))
    wrong = inside & ((value != value) | (tl.abs(value) == float("inf")))
    broken = tl.sum(wrong.to(tl.int32), 0) > 0
    value = tl.where(wrong, float("-inf"), value)
    top, index = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
    at = row * tl.num_programs(1) + chunk
    tl.store(best + at, tl.where(broken, float("nan"), top))
    tl.store(where + at, chunk * CHUNK + index)


@triton.jit
def _finish_argmax(
    best,
    where,
    queries,
    slots,
    chosen,
    failed,
    last,
    CHUNKS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK)
    inside = chunks < CHUNKS
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    value = tl.load(best + row * CHUNKS + chunks, inside, float("-inf"))
    broken = tl.sum((value != value).to(tl.int32), 0) > 0
    value = tl.where(value != value, float("-inf"), value)
    index = tl.argmax(value, 0, tie_break_left=True)
    token = tl.where(broken, 0, tl.load(where + row * CHUNKS + index))
    tl.store(chosen + row, token)
    tl.store(failed + row, broken.to(tl.int32))
    slot = tl.load(slots + tl.load(queries + row))
    tl.store(last + slot, token)


def chunks_of(vocabulary: int) -> int:
    """Programs of the first stage for one row."""
    return triton.cdiv(vocabulary, CHUNK)


def greedy(
    logits: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    queries: torch.Tensor,
    slots: torch.Tensor,
    chosen: torch.Tensor,
    failed: torch.Tensor,
    last: torch.Tensor,
) -> None:
    """Chooses a token for each row of ``logits`` and remembers it as its slot's last one."""
    rows, vocabulary = logits.shape
    chunks = chunks_of(vocabulary)
    best, where = scratch
    _chunk_argmax[(rows, chunks)](
        logits,
        best,
        where,
        VOCABULARY=vocabulary,
        CHUNK=CHUNK,
        PDL=DEPENDENT_LAUNCH,
        num_warps=8,
        **OPTIONS,
    )
    _finish_argmax[(rows,)](
        best,
        where,
        queries,
        slots,
        chosen,
        failed,
        last,
        CHUNKS=chunks,
        BLOCK=power_of_two(chunks),
        PDL=DEPENDENT_LAUNCH,
        num_warps=1,
        **OPTIONS,
    )
