"""Paged attention of single tokens: split over the context, then combined. Safe in a graph.

Shapes   qkv[tokens, (heads + 2 kv_heads) head_dim], rotated queries first
         queries[rows] int32: the token of each row; slots[tokens], positions[tokens] int32
         table[slots, blocks] int64: item offset in the region of each block of a slot
         partial[rows, heads, splits, head_dim] and weights[rows, heads, splits] float32 scratch
         out[tokens, heads head_dim]
Dtypes   KV and queries of one 16- or 32-bit float type; scores and sums in float32
Order    a row's context is cut into ``splits`` runs of whole tiles by its own length alone; each
         run is summed tile by tile, and runs are combined in order. Batch neighbours change
         neither, as long as ``splits`` is the same
Twin     reference.paged_attention; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two

MAX_SPLITS = 16
_LOG2_E = 1.4426950408889634


@triton.jit
def _decode_attention(
    qkv,
    queries,
    slots,
    positions,
    table,
    region,
    partial,
    weights,
    out,
    table_width,
    layer_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(queries + row).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    length = tl.load(positions + token) + 1
    tiles = tl.cdiv(length, TILE)
    share = tl.cdiv(tiles, SPLITS)
    first = split * share
    last = tl.minimum(first + share, tiles)

    group = tl.arange(0, PADDED)
    lanes = tl.arange(0, HEAD_DIM)
    steps = tl.arange(0, TILE)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    heads = kv_head * GROUP + group
    real = group < GROUP
    # Keys times queries, not queries times keys: the few heads of a group are then the narrow
    # side of the product, which may be 8 wide, and little of it is padding.
    query = tl.load(
        qkv + token * width + heads[None, :] * HEAD_DIM + lanes[:, None], real[None, :], 0.0
    )
    highest = tl.full([PADDED], float("-inf"), tl.float32)
    mass = tl.zeros([PADDED], tl.float32)
    total = tl.zeros([HEAD_DIM, PADDED], tl.float32)
    head_offset = layer_offset + kv_head.to(tl.int64) * (BLOCK_TOKENS * HEAD_DIM)
    value_offset = KV_HEADS * BLOCK_TOKENS * HEAD_DIM
    for tile in range(first, last):
        start = tile * TILE
        block = tl.load(table + slot * table_width + start // BLOCK_TOKENS)
        inside = start + steps < length
        place = (start % BLOCK_TOKENS + steps)[:, None] * HEAD_DIM + lanes[None, :]
        keys = region + block + head_offset
        key = tl.load(keys + place, inside[:, None], 0.0)
        score = tl.where(
            inside[:, None], tl.dot(key, query, input_precision="ieee") * scale, float("-inf")
        )
        value = tl.load(keys + value_offset + place, inside[:, None], 0.0)
        top = tl.maximum(highest, tl.max(score, 0))
        shrink = tl.exp2(highest - top)
        share_of = tl.exp2(score - top[None, :])
        mass = mass * shrink + tl.sum(share_of, 0)
        total = total * shrink[None, :] + tl.dot(
            tl.trans(value), share_of.to(value.dtype), input_precision="ieee"
        )
        highest = top
    if SPLITS == 1:
        place = out + token * (HEADS * HEAD_DIM) + heads[None, :] * HEAD_DIM + lanes[:, None]
        tl.store(place, (total / mass[None, :]).to(out.dtype.element_ty), real[None, :])
    else:
        at = (row * HEADS + heads) * SPLITS + split
        empty = first >= last
        divisor = tl.where(empty, 1.0, mass)
        log_mass = tl.where(empty, float("-inf"), highest + tl.log2(divisor))
        tl.store(weights + at, log_mass, real)
        if first < last:
            tl.store(
                partial + at[None, :] * HEAD_DIM + lanes[:, None],
                total / divisor[None, :],
                real[None, :],
            )


@triton.jit
def _combine(
    queries,
    partial,
    weights,
    out,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    lanes = tl.arange(0, HEAD_DIM)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(queries + row).to(tl.int64)
    at = (row * HEADS + head) * SPLITS + splits
    weight = tl.load(weights + at)
    used = weight > float("-inf")
    weight = tl.exp2(weight - tl.max(weight, 0))
    # Scratch of a split that had nothing to do was not written in this step.
    values = tl.load(partial + at[:, None] * HEAD_DIM + lanes[None, :], used[:, None], 0.0)
    total = tl.sum(values * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out + (token * HEADS + head) * HEAD_DIM + lanes, total.to(out.dtype.element_ty))


def splits_for(rows: int, kv_heads: int, processors: int) -> int:
    """Runs of a row's context, so that about eight programs a multiprocessor exist; at most 16."""
    splits = 1
    while splits < MAX_SPLITS and 2 * rows * kv_heads * splits <= 8 * processors:
        splits *= 2
    return splits


def decode_attention(
    qkv: torch.Tensor,
    queries: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    region: torch.Tensor,
    scratch: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int,
    splits: int,
) -> None:
    """Attention of the tokens ``queries`` over their slots' context, themselves included."""
    group = heads // kv_heads
    tile = min(block_tokens, 32)
    partial, weights = scratch
    rows = queries.shape[0]
    _decode_attention[(rows, kv_heads, splits)](
        qkv,
        queries,
        slots,
        positions,
        table,
        region,
        partial,
        weights,
        out,
        table.shape[1],
        layer * 2 * kv_heads * block_tokens * head_dim,
        _LOG2_E * head_dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=max(8, power_of_two(group)),
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        TILE=tile,
        SPLITS=splits,
        PDL=DEPENDENT_LAUNCH,
        num_warps=2 if splits == MAX_SPLITS else 1,
        num_stages=2,
        **OPTIONS,
    )
    if splits > 1:
        _combine[(rows, heads)](
            queries,
            partial,
            weights,
            out,
            HEADS=heads,
            HEAD_DIM=head_dim,
            SPLITS=splits,
            PDL=DEPENDENT_LAUNCH,
            num_warps=2,
            **OPTIONS,
        )
