"""Sampling without a sort: the largest of (logit / temperature + Gumbel noise) that the filters keep.

The noise of a token is a hash of (seed, choice, index of the sample, token id): the same as the
CPU sampler's, and independent of the batch. The filters are upper sets of the logits, so a
candidate that they refuse rules out everything at or below it: the search repeats above it.

Shapes   logits[rows, vocabulary] float32; queries[rows], slots[tokens], samples[rows] int32
         floats[slots + 1, 8] float32: temperature, top_p, min_p, presence, frequency, repetition
         words[slots + 1, 8] int64: seed, choice, top_k, min_new, stop count, bias count
         chosen[rows], failed[rows], last[slots + 1] int32
Order    sums of exponentials chunk by chunk, in order of ids
Twin     reference.sample; the same token, unless two candidates are within rounding
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS

CHUNK = 8192
_BISECTIONS = 40


@triton.jit
def _splitmix(value):
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 16)) * 0x7FEB352D
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    return bits ^ (bits >> 16)


@triton.jit
def _gumbel(ids, first, second):
    bits = ids.to(tl.uint32) * 0x9E3779B1 + first
    bits = _mix(_mix(bits) + second)
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    return -tl.log(-tl.log(uniform))


@triton.jit
def _sample(
    logits,
    queries,
    slots,
    samples,
    floats,
    words,
    chosen,
    failed,
    last,
    VOCABULARY: tl.constexpr,
    CHUNK: tl.constexpr,
    BISECTIONS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, CHUNK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.load(slots + tl.load(queries + row)).to(tl.int64)
    temperature = tl.load(floats + slot * 8)
    top_p = tl.load(floats + slot * 8 + 1)
    min_p = tl.load(floats + slot * 8 + 2)
    seed = tl.load(words + slot * 8).to(tl.uint64)
    choice = tl.load(words + slot * 8 + 1).to(tl.uint64)
    top_k = tl.load(words + slot * 8 + 2)
    index = tl.load(samples + row).to(tl.uint64) & 0xFFFFFFFF
    line = logits + row * VOCABULARY

    broken = 0
    highest = float("-inf")
    best = 0
    for start in range(0, VOCABULARY, CHUNK):
        ids = start + lanes
        inside = ids < VOCABULARY
        value = tl.load(line + ids, inside, float("-inf"))
        # A banned token's logit is -inf on purpose; NaN and +inf are not.
        wrong = inside & ((value != value) | (value == float("inf")))
        broken += tl.sum(wrong.to(tl.int32), 0)
        value = tl.where(wrong, float("-inf"), value)
        top, at = tl.max(value, 0, return_indices=True, return_indices_tie_break_left=True)
        best = tl.where(top > highest, start + at, best)
        highest = tl.maximum(highest, top)
    broken += (highest == float("-inf")).to(tl.int32)
    token = best
    if (temperature > 0) & (broken == 0):
        inverse = 1.0 / temperature
        key = _splitmix(_splitmix(seed) ^ ((choice << 32) | index))
        first = (key & 0xFFFFFFFF).to(tl.uint32)
        second = (key >> 32).to(tl.uint32)
        # Filters come in this order: the k largest, top_p of their mass, min_p.
        floor = tl.full([], float("-inf"), tl.float32)
        if (top_k > 0) & (top_k < VOCABULARY):
            # The k-th largest, by bisection of the interval that holds the row's upper part.
            low = highest - 60.0 * tl.maximum(temperature, 1.0)
            high = highest
            for _ in range(BISECTIONS):
                middle = 0.5 * (low + high)
                count = 0
                for start in range(0, VOCABULARY, CHUNK):
                    ids = start + lanes
                    value = tl.load(line + ids, ids < VOCABULARY, float("-inf"))
                    count += tl.sum((value >= middle).to(tl.int32), 0)
                enough = count >= top_k
                low = tl.where(enough, middle, low)
                high = tl.where(enough, high, middle)
            floor = low
        mass = 0.0
        for start in range(0, VOCABULARY, CHUNK):
            ids = start + lanes
            value = tl.load(line + ids, ids < VOCABULARY, float("-inf"))
            kept = value >= floor
            mass += tl.sum(tl.where(kept, tl.exp((value - highest) * inverse), 0.0), 0)
        if min_p > 0:
            floor = tl.maximum(floor, highest + tl.log(tl.maximum(min_p, 1e-37)) * temperature)
        bound = float("-inf")
        searching = 1
        while searching != 0:
            leader = float("-inf")
            leader_logit = highest
            token = best
            for start in range(0, VOCABULARY, CHUNK):
                ids = start + lanes
                value = tl.load(line + ids, ids < VOCABULARY, float("-inf"))
                kept = (value > bound) & (value >= floor) & (value > float("-inf"))
                noisy = tl.where(kept, value * inverse + _gumbel(ids, first, second), float("-inf"))
                top, at = tl.max(noisy, 0, return_indices=True, return_indices_tie_break_left=True)
                if top > leader:
                    leader = top
                    token = start + at
            leader_logit = tl.load(line + token)
            above = 0.0
            if top_p < 1.0:
                for start in range(0, VOCABULARY, CHUNK):
                    ids = start + lanes
                    value = tl.load(line + ids, ids < VOCABULARY, float("-inf"))
                    counted = value > leader_logit
                    above += tl.sum(tl.where(counted, tl.exp((value - highest) * inverse), 0.0), 0)
            if (above < top_p * mass) | (leader_logit >= highest) | (top_p >= 1.0):
                searching = 0
            else:
                bound = leader_logit
    token = tl.where(broken > 0, 0, token)
    tl.store(chosen + row, token)
    tl.store(failed + row, (broken > 0).to(tl.int32))
    tl.store(last + slot, token)


def sample(
    logits: torch.Tensor,
    queries: torch.Tensor,
    slots: torch.Tensor,
    samples: torch.Tensor,
    floats: torch.Tensor,
    words: torch.Tensor,
    chosen: torch.Tensor,
    failed: torch.Tensor,
    last: torch.Tensor,
) -> None:
    """Chooses a token for each row, greedy where the slot's temperature is 0."""
    rows, vocabulary = logits.shape
    _sample[(rows,)](
        logits,
        queries,
        slots,
        samples,
        floats,
        words,
        chosen,
        failed,
        last,
        VOCABULARY=vocabulary,
        CHUNK=CHUNK,
        BISECTIONS=_BISECTIONS,
        PDL=DEPENDENT_LAUNCH,
        num_warps=32,
        **OPTIONS,
    )
