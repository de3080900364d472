"""Paged attention of single tokens whose contexts begin with the same blocks: those are read once.

Two launches. The first takes a tile of rows that share a beginning, and a run of it: a key that was
read serves every row of the tile. The second takes a row: it sums what is the row's own, then adds
the runs of its beginning. Launches depend on batch size alone, as a graph needs it.

Shapes   as in ``decode_attention``; queries[rows] int32: the token of each row
         shared[rows] int32: tokens of the row's context that a tile serves, whole blocks; 0: none
         members[tiles, MEMBERS] int32: a row, or -1; the first one is always there in a used tile
         partial[rows, heads, splits, head_dim] and masses[rows, heads, splits] float32 scratch
Dtypes   KV and queries of one 16- or 32-bit float type; scores and sums in float32
Order    a beginning is cut into ``splits`` runs of whole key tiles by its length alone, each summed
         tile by tile; a row adds them, in order, to the sum of its own tiles
Twin     reference.paged_attention; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two
from headrace_engine.kernels.gpu.online_softmax import fold_narrow, fold_wide, merge_narrow

MAX_SPLITS = 16
_LOG2_E = 1.4426950408889634
_ALIGNED = tl.constexpr(16)
"""Items that every block offset is a multiple of, as in ``prefill_attention``."""
_LINES = 64
"""Query rows (members x heads of a group) of a tile."""


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Which rows share their beginning with which."""

    shared: torch.Tensor
    """int32[rows]."""
    members: torch.Tensor
    """int32[tiles, members of a tile]."""


@triton.jit
def _beginnings(
    qkv,
    members,
    shared,
    queries,
    slots,
    table,
    region,
    partial,
    masses,
    table_width,
    layer_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    MEMBERS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    tile_id = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    leader = tl.load(members + tile_id * MEMBERS)
    if leader < 0:
        return
    length = tl.load(shared + leader)
    slot = tl.load(slots + tl.load(queries + leader)).to(tl.int64)
    tiles = length // TILE
    run = tl.cdiv(tiles, SPLITS)
    first = split * run
    last = tl.minimum(first + run, tiles)

    # Line r is member r // PADDED, head r % PADDED.
    lines = tl.arange(0, MEMBERS * PADDED)
    row = tl.load(members + tile_id * MEMBERS + lines // PADDED)
    heads = kv_head * GROUP + lines % PADDED
    real = (row >= 0) & (lines % PADDED < GROUP)
    row = tl.maximum(row, 0)
    token = tl.load(queries + row).to(tl.int64)
    lanes = tl.arange(0, HEAD_DIM)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    place = token[:, None] * width + heads[:, None] * HEAD_DIM + lanes[None, :]
    query = tl.load(qkv + place, real[:, None], 0.0)
    highest = tl.full([MEMBERS * PADDED], float("-inf"), tl.float32)
    mass = tl.zeros([MEMBERS * PADDED], tl.float32)
    total = tl.zeros([MEMBERS * PADDED, HEAD_DIM], tl.float32)
    blocks = table + slot * table_width
    inner = tl.arange(0, TILE)[:, None] * HEAD_DIM + lanes[None, :]
    head_offset = layer_offset + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    value_offset = KV_HEADS * BLOCK_TOKENS * HEAD_DIM
    for tile in range(first, last):
        start = tile * TILE
        block = tl.multiple_of(tl.load(blocks + start // BLOCK_TOKENS), _ALIGNED)
        keys = region + (block + head_offset + start % BLOCK_TOKENS * HEAD_DIM) + inner
        score = tl.dot(query, tl.trans(tl.load(keys)), input_precision="ieee")
        highest, mass, total = fold_wide(
            score, tl.load(keys + value_offset), highest, mass, total, scale, False
        )
    at = (row.to(tl.int64) * HEADS + heads) * SPLITS + split
    empty = first >= last
    divisor = tl.where(empty, 1.0, mass)
    tl.store(masses + at, tl.where(empty, float("-inf"), highest + tl.log2(divisor)), real)
    tl.store(
        partial + at[:, None] * HEAD_DIM + lanes[None, :],
        total / divisor[:, None],
        real[:, None],
    )


@triton.jit
def _rows(
    qkv,
    shared,
    queries,
    slots,
    positions,
    table,
    region,
    partial,
    masses,
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
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(queries + row).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    length = tl.load(positions + token) + 1
    begin = tl.load(shared + row)

    group = tl.arange(0, PADDED)
    lanes = tl.arange(0, HEAD_DIM)
    steps = tl.arange(0, TILE)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    heads = kv_head * GROUP + group
    real = group < GROUP
    # Keys times queries: the few heads of a group are then the narrow side of the product.
    place = token * width + heads[None, :] * HEAD_DIM + lanes[:, None]
    query = tl.load(qkv + place, real[None, :], 0.0)
    highest = tl.full([PADDED], float("-inf"), tl.float32)
    mass = tl.zeros([PADDED], tl.float32)
    total = tl.zeros([HEAD_DIM, PADDED], tl.float32)
    blocks = table + slot * table_width
    inner = steps[:, None] * HEAD_DIM + lanes[None, :]
    head_offset = layer_offset + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    value_offset = KV_HEADS * BLOCK_TOKENS * HEAD_DIM
    for start in range(begin // TILE * TILE, length, TILE):
        block = tl.multiple_of(tl.load(blocks + start // BLOCK_TOKENS), _ALIGNED)
        inside = start + steps < length
        keys = region + (block + head_offset + start % BLOCK_TOKENS * HEAD_DIM) + inner
        key = tl.load(keys, inside[:, None], 0.0)
        score = tl.dot(key, query, input_precision="ieee") * scale
        score = tl.where(inside[:, None], score, float("-inf"))
        value = tl.load(keys + value_offset, inside[:, None], 0.0)
        highest, mass, total = fold_narrow(score, value, highest, mass, total)
    if begin > 0:
        for split in range(SPLITS):
            at = (row * HEADS + heads) * SPLITS + split
            other = tl.load(masses + at, real, float("-inf"))
            part = tl.load(partial + at[None, :] * HEAD_DIM + lanes[:, None], real[None, :], 0.0)
            highest, mass, total = merge_narrow(other, part, highest, mass, total)
    place = out + token * (HEADS * HEAD_DIM) + heads[None, :] * HEAD_DIM + lanes[:, None]
    tl.store(place, (total / mass[None, :]).to(out.dtype.element_ty), real[None, :])


def members_of_tile(heads: int, kv_heads: int) -> int:
    """Rows of one tile."""
    return max(1, _LINES // power_of_two(heads // kv_heads))


def beginning_splits(rows: int, heads: int, kv_heads: int, processors: int) -> int:
    """Runs of a beginning, so that about two programs a multiprocessor exist; at most 16."""
    tiles = triton.cdiv(rows, members_of_tile(heads, kv_heads))
    splits = 1
    while splits < MAX_SPLITS and 2 * tiles * kv_heads * splits <= 2 * processors:
        splits *= 2
    return splits


def shared_attention(
    qkv: torch.Tensor,
    sharing: SharedRows,
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
    partial, masses = scratch
    layer_offset = layer * 2 * kv_heads * block_tokens * head_dim
    scale = _LOG2_E * head_dim**-0.5
    shared, members = sharing.shared, sharing.members
    tiles, count = members.shape
    _beginnings[(tiles, kv_heads, splits)](
        qkv,
        members,
        shared,
        queries,
        slots,
        table,
        region,
        partial,
        masses,
        table.shape[1],
        layer_offset,
        scale,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=power_of_two(group),
        MEMBERS=count,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        TILE=min(block_tokens, 64),
        SPLITS=splits,
        PDL=DEPENDENT_LAUNCH,
        num_warps=4,
        num_stages=3,
        **OPTIONS,
    )
    _rows[(queries.shape[0], kv_heads)](
        qkv,
        shared,
        queries,
        slots,
        positions,
        table,
        region,
        partial,
        masses,
        out,
        table.shape[1],
        layer_offset,
        scale,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=max(8, power_of_two(group)),
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        TILE=min(block_tokens, 32),
        SPLITS=splits,
        PDL=DEPENDENT_LAUNCH,
        num_warps=1,
        num_stages=2,
        **OPTIONS,
    )
