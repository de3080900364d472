"""Paged attention of runs of tokens: causal within the run, over whatever is cached before it.

Keys and values come by the copy engine (TMA) where the card has one: 6 % faster than by pointers. Without
it Triton would wait for each such load, so there they come by pointers. Tiles, slots and positions are read
before the wait on the kernel before: ``embed_norm`` lies between what writes them and every layer, and waits;
see ``launch``.

Shapes   as in ``decode_attention``; tiles[count, 2] int32: first token of the batch, tokens
Dtypes   KV and queries of one 16- or 32-bit float type; scores and sums in float32
Order    one program a tile of queries and key head; keys tile by tile from position 0
Twin     reference.paged_attention; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from headrace_engine.kernels.gpu.card import capability
from headrace_engine.kernels.gpu.decode_attention import line_of
from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, MEMORY, OPTIONS, power_of_two
from headrace_engine.kernels.gpu.online_softmax import fold_wide

_LOG2_E: Final = 1.4426950408889634
_ROWS: Final = 64
"""Query rows (tokens x heads of a group) of a program."""
_WARPS: Final = 4
_TILE: Final = 64
"""Keys of one step of a program, where a cache block has as many."""
_MOST_AHEAD: Final = 3
"""Tiles of keys and values that a program has in shared memory."""
_SPARE: Final = 1536
"""Bytes of shared memory that two programs leave to the card, each."""
_TMA = capability() >= (9, 0)
"""Whether the card has a copy engine."""


@triton.jit
def _lines_at(lines, region, line, TILE: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    if TMA:
        return lines.load([line, 0])
    else:
        inner = tl.arange(0, TILE)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        return tl.load(region + line.to(tl.int64) * HEAD_DIM + inner)


@triton.jit(do_not_specialize=["layer"])
def _prefill_attention(
    qkv,
    tiles,
    slots,
    positions,
    table,
    lines,
    region,
    out,
    table_width,
    layer,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    TMA: tl.constexpr,
    PDL: tl.constexpr,
):
    tile_id = tl.program_id(0)
    kv_head = tl.program_id(1)
    count = tl.load(tiles + tile_id * 2 + 1)
    token = tl.load(tiles + tile_id * 2).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    begin = tl.load(positions + token)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if count == 0:
        # A captured launch has room for more tiles than a step may have.
        return

    # Row r is token r // PADDED, head r % PADDED: a key read once serves the whole group.
    rows = tl.arange(0, TOKENS * PADDED)
    member = rows // PADDED
    heads = kv_head * GROUP + rows % PADDED
    lanes = tl.arange(0, HEAD_DIM)
    steps = tl.arange(0, TILE)
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    real = (member < count) & (rows % PADDED < GROUP)
    query = tl.load(
        qkv + (token + member)[:, None] * width + heads[:, None] * HEAD_DIM + lanes[None, :],
        real[:, None],
        0.0,
    )
    highest = tl.full([TOKENS * PADDED], float("-inf"), tl.float32)
    mass = tl.zeros([TOKENS * PADDED], tl.float32)
    total = tl.zeros([TOKENS * PADDED, HEAD_DIM], tl.float32)
    blocks = table + slot * table_width
    head_line = layer * (2 * KV_HEADS * BLOCK_TOKENS) + kv_head * BLOCK_TOKENS
    value_lines: tl.constexpr = KV_HEADS * BLOCK_TOKENS
    # Every query of the program sees all keys before ``begin``: those tiles need no mask.
    whole = (begin + 1) // TILE
    for tile in tl.range(0, whole, num_stages=STAGES):
        line = head_line + line_of(blocks, tile, BLOCK_TOKENS, HEAD_DIM, TILE)
        keys = _lines_at(lines, region, line, TILE, HEAD_DIM, TMA)
        score = tl.dot(query, tl.trans(keys), input_precision="ieee")
        values = _lines_at(lines, region, line + value_lines, TILE, HEAD_DIM, TMA)
        highest, mass, total = fold_wide(score, values, highest, mass, total, scale, False)
    end = begin + count
    for tile in tl.range(whole, (end + TILE - 1) // TILE, num_stages=2):
        line = head_line + line_of(blocks, tile, BLOCK_TOKENS, HEAD_DIM, TILE)
        key = tile * TILE + steps
        inside = key < end
        keys = _lines_at(lines, region, line, TILE, HEAD_DIM, TMA)
        score = tl.dot(query, tl.trans(keys), input_precision="ieee")
        seen = inside[None, :] & (key[None, :] <= (begin + member)[:, None])
        score = tl.where(seen, score, float("-inf"))
        # What follows the run in its last block may be anything, NaN too.
        values = _lines_at(lines, region, line + value_lines, TILE, HEAD_DIM, TMA)
        values = tl.where(inside[:, None], values, 0.0)
        highest, mass, total = fold_wide(score, values, highest, mass, total, scale, True)
    place = (token + member)[:, None] * (HEADS * HEAD_DIM) + heads[:, None] * HEAD_DIM
    result = (total / mass[:, None]).to(out.dtype.element_ty)
    tl.store(out + place + lanes[None, :], result, real[:, None])


def tile_tokens(heads: int, kv_heads: int) -> int:
    """Tokens of one query tile."""
    return max(1, _ROWS // power_of_two(heads // kv_heads))


def stages_of(rows: int, head_dim: int, tile: int, item: int, memory: int) -> int:
    """Of a program's loop: as many tiles under way as leave room for a second program on the
    multiprocessor, but two at least. ``item`` and ``memory`` in bytes.

    A tile takes two stages, as its block's number has to be there before it can be asked for: with
    three stages a program waits for each tile from the moment at which it asks.
    """
    room = memory // 2 - _SPARE - rows * head_dim * item
    ahead = min(_MOST_AHEAD, max(2, room // (2 * tile * head_dim * item)))
    return 2 * ahead - 1


def prefill_attention(
    qkv: torch.Tensor,
    tiles: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    region: torch.Tensor,
    out: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_tokens: int,
) -> None:
    """Attention of every token in ``tiles``; KV of the whole batch is written already."""
    group = heads // kv_heads
    tokens, padded = tile_tokens(heads, kv_heads), power_of_two(group)
    tile = min(block_tokens, _TILE)
    count = region.numel() // head_dim
    _prefill_attention[(tiles.shape[0], kv_heads)](
        qkv,
        tiles,
        slots,
        positions,
        table,
        TensorDescriptor(region, [count, head_dim], [head_dim, 1], [tile, head_dim]),
        region,
        out,
        table.shape[1],
        layer,
        _LOG2_E * head_dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=padded,
        TOKENS=tokens,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        TILE=tile,
        STAGES=stages_of(tokens * padded, head_dim, tile, region.element_size(), MEMORY),
        TMA=_TMA,
        PDL=DEPENDENT_LAUNCH,
        num_warps=_WARPS,
        **OPTIONS,
    )
