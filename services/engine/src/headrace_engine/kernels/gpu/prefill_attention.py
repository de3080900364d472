"""Paged attention of runs of tokens: causal within the run, over whatever is cached before it.

Tiles, slots and positions are read before the wait on the kernel before: ``embed_norm`` lies between
what writes them and every layer, and waits; see ``launch``.

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

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, MEMORY, OPTIONS, power_of_two
from headrace_engine.kernels.gpu.online_softmax import fold_wide

_LOG2_E: Final = 1.4426950408889634
_ALIGNED = tl.constexpr(16)
"""Items that every block offset is a multiple of. The compiler cannot know it of what it reads from
the table, and would load every element by itself."""
_ROWS: Final = 64
"""Query rows (tokens x heads of a group) of a program."""
_WARPS: Final = 4
_TILE: Final = 64
"""Keys of one step of a program, where a cache block has as many."""
_MOST_AHEAD: Final = 3
"""Tiles of keys and values that a program has in shared memory."""
_SPARE: Final = 1536
"""Bytes of shared memory that two programs leave to the card, each."""


@triton.jit
def _prefill_attention(
    qkv,
    tiles,
    slots,
    positions,
    table,
    region,
    out,
    table_width,
    layer_offset,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
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
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
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
    inner = steps[:, None] * HEAD_DIM + lanes[None, :]
    head_offset = layer_offset + kv_head * (BLOCK_TOKENS * HEAD_DIM)
    value_offset = KV_HEADS * BLOCK_TOKENS * HEAD_DIM
    # Every query of the program sees all keys before ``begin``: those tiles need no mask.
    open_end = (begin + 1) // TILE * TILE
    for start in range(0, open_end, TILE):
        block = tl.multiple_of(tl.load(blocks + start // BLOCK_TOKENS), _ALIGNED)
        keys = region + (block + head_offset + start % BLOCK_TOKENS * HEAD_DIM) + inner
        score = tl.dot(query, tl.trans(tl.load(keys)), input_precision="ieee")
        highest, mass, total = fold_wide(
            score, tl.load(keys + value_offset), highest, mass, total, scale, False
        )
    end = begin + count
    for start in range(open_end, end, TILE):
        block = tl.multiple_of(tl.load(blocks + start // BLOCK_TOKENS), _ALIGNED)
        inside = start + steps < end
        keys = region + (block + head_offset + start % BLOCK_TOKENS * HEAD_DIM) + inner
        score = tl.dot(query, tl.trans(tl.load(keys, inside[:, None], 0.0)), input_precision="ieee")
        seen = (start + steps)[None, :] <= (begin + member)[:, None]
        score = tl.where(seen & inside[None, :], score, float("-inf"))
        value = tl.load(keys + value_offset, inside[:, None], 0.0)
        highest, mass, total = fold_wide(score, value, highest, mass, total, scale, True)
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
    _prefill_attention[(tiles.shape[0], kv_heads)](
        qkv,
        tiles,
        slots,
        positions,
        table,
        region,
        out,
        table.shape[1],
        layer * 2 * kv_heads * block_tokens * head_dim,
        _LOG2_E * head_dim**-0.5,
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP=group,
        PADDED=padded,
        TOKENS=tokens,
        HEAD_DIM=head_dim,
        BLOCK_TOKENS=block_tokens,
        TILE=tile,
        PDL=DEPENDENT_LAUNCH,
        num_warps=_WARPS,
        num_stages=stages_of(tokens * padded, head_dim, tile, region.element_size(), MEMORY),
        **OPTIONS,
    )
