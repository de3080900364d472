"""What changes logits before a token is chosen: penalties, bias, and the ban of stop tokens.

Shapes   logits[rows, vocabulary] float32, changed in place
         generated[slots + 1, vocabulary] int16: how often each id was generated, at most MOST
         prompted[slots + 1, vocabulary] uint8: whether it was in the prompt
         bias_ids[slots + 1, entries], bias_values[slots + 1, entries], stop_ids[slots + 1, entries]
         floats, words as in ``sample``
Order    repetition, frequency, presence, bias, ban
Twin     reference.adjust, exact
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two

_CHUNK = 2048
MOST: Final = 32_767
"""Times that a token is counted: as many as an int16 holds."""


@triton.jit
def _penalize(
    logits,
    queries,
    slots,
    floats,
    generated,
    prompted,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    inside = ids < VOCABULARY
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.load(slots + tl.load(queries + row)).to(tl.int64)
    presence = tl.load(floats + slot * 8 + 3)
    frequency = tl.load(floats + slot * 8 + 4)
    repetition = tl.load(floats + slot * 8 + 5)
    if (presence != 0) | (frequency != 0) | (repetition != 1):
        at = logits + row * VOCABULARY + ids
        value = tl.load(at, inside, 0.0)
        count = tl.load(generated + slot * VOCABULARY + ids, inside, 0).to(tl.float32)
        seen = (count > 0) | (tl.load(prompted + slot * VOCABULARY + ids, inside, 0) > 0)
        repeated = tl.where(value > 0, value / repetition, value * repetition)
        value = tl.where(seen, repeated, value)
        value -= frequency * count
        value = tl.where(count > 0, value - presence, value)
        tl.store(at, value, inside)


@triton.jit
def _bias_and_ban(
    logits,
    queries,
    slots,
    samples,
    words,
    bias_ids,
    bias_values,
    stop_ids,
    VOCABULARY: tl.constexpr,
    BIASES: tl.constexpr,
    STOPS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.load(slots + tl.load(queries + row)).to(tl.int64)
    line = logits + row * VOCABULARY
    minimum = tl.load(words + slot * 8 + 3)
    stops = tl.load(words + slot * 8 + 4)
    biases = tl.load(words + slot * 8 + 5)
    entry = tl.arange(0, BIASES)
    live = entry < biases
    at = line + tl.load(bias_ids + slot * BIASES + entry, live, 0)
    value = tl.load(at, live, 0.0)
    tl.store(at, value + tl.load(bias_values + slot * BIASES + entry, live, 0.0), live)
    # A banned id may have a bias too: its ban must come last.
    tl.debug_barrier()
    stop = tl.arange(0, STOPS)
    banned = (stop < stops) & (tl.load(samples + row) < minimum)
    at = line + tl.load(stop_ids + slot * STOPS + stop, banned, 0)
    tl.store(at, tl.full([STOPS], float("-inf"), tl.float32), banned)


@triton.jit(do_not_specialize=["ROWS"])
def _count(
    chosen,
    queries,
    slots,
    generated,
    ROWS,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = rows < ROWS
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.load(slots + tl.load(queries + rows, live, 0), live, 0).to(tl.int64)
    at = generated + slot * VOCABULARY + tl.load(chosen + rows, live, 0)
    times = tl.load(at, live, 0)
    tl.store(at, times + 1, live & (times < 32767))  # MOST


def adjust(
    logits: torch.Tensor,
    queries: torch.Tensor,
    slots: torch.Tensor,
    samples: torch.Tensor,
    floats: torch.Tensor,
    words: torch.Tensor,
    counts: tuple[torch.Tensor, torch.Tensor],
    bias: tuple[torch.Tensor, torch.Tensor],
    stop_ids: torch.Tensor,
) -> None:
    """Applies each row's penalties, bias and bans to ``logits``."""
    rows, vocabulary = logits.shape
    generated, prompted = counts
    _penalize[(rows, triton.cdiv(vocabulary, _CHUNK))](
        logits,
        queries,
        slots,
        floats,
        generated,
        prompted,
        VOCABULARY=vocabulary,
        CHUNK=_CHUNK,
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        **OPTIONS,
    )
    _bias_and_ban[(rows,)](
        logits,
        queries,
        slots,
        samples,
        words,
        *bias,
        stop_ids,
        VOCABULARY=vocabulary,
        BIASES=bias[0].shape[1],
        STOPS=stop_ids.shape[1],
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        **OPTIONS,
    )


def count(
    chosen: torch.Tensor, queries: torch.Tensor, slots: torch.Tensor, generated: torch.Tensor
) -> None:
    """Counts each row's chosen token for the penalties of later steps."""
    rows = chosen.shape[0]
    block = min(256, power_of_two(rows))
    _count[(triton.cdiv(rows, block),)](
        chosen,
        queries,
        slots,
        generated,
        rows,
        VOCABULARY=generated.shape[1],
        BLOCK=block,
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        **OPTIONS,
    )
