"""Paged attention of single tokens, for few rows and for many. Safe in a graph.

Many rows: a row's context is cut into pieces of about equal size, by its own length alone. ``plan``
lists the pieces of all rows once a step; in every layer resident programs take (piece, key head)
pairs from the list until it is empty, so that rows of uneven length balance. The program that
finishes the last piece of a row and head combines them. Few rows: each row is cut into ``SPLITS``
pieces, a program each, and a second launch combines; no list has to be read first.

Nothing depends on a length that the host knows: the launch is the same for every step of one batch
size. What no kernel writes between the plan and the layers is read before the wait on the kernel
before: the list, and for few rows slots and positions. That is safe because a kernel lies between
which waits and only then lets the next one begin (``embed_norm``); see ``launch``.

Shapes   qkv[tokens, (heads + 2 kv_heads) head_dim], rotated queries first
         queries[rows] int32: the token of each row; slots[tokens], positions[tokens] int32
         table[slots, blocks] int64: item offset in the region of each block of a slot
         lines[region lines, head_dim]: the region, a token's key or value of one head a line
         pieces[1 + count, 8] int32: the count; then token, slot, length, first tile, end, the row's
         first piece, its pieces, row
         partial[pieces, heads, head_dim] and masses[pieces, heads] float32 scratch
         out[tokens, heads head_dim]
Dtypes   KV and queries of one 16- or 32-bit float type; scores and sums in float32
Order    a piece is summed tile by tile, and pieces are combined in order. Batch neighbours change
         neither, as long as ``Cut`` is the same
Twin     reference.paged_attention; relative error below 1e-2 in bfloat16
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two
from headrace_engine.kernels.gpu.online_softmax import fold_narrow, merge_narrow

TILE: Final = 32
"""Tokens of one step of a program, where a cache block has as many."""
FEW_ROWS: Final = 16
"""Up to here each row is cut into SPLITS pieces."""
SPLITS: Final = 16
_WORDS: Final = 8
"""int32 of one entry of the list of pieces."""
_PROGRAMS: Final = 4
"""On one multiprocessor, where pieces come from the list."""
_STAGES: Final = 8
"""Of the loop over tiles there; half of them hold keys and values, half the way to them."""
_FEW_STAGES: Final = 3
_MOST_LINES: Final = 2**31 - 1
_LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Cut:
    """How contexts are cut, for one batch size on one device."""

    tokens: int
    """Of one piece, at most, until a row has ``most`` pieces."""
    most: int
    """Pieces of one row."""
    programs: int
    """That share the pieces."""


def cut_for(rows: int, kv_heads: int, processors: int) -> Cut:
    """Pieces as large as keeps the device even, which sweeps on an H200 found. Small ones do not pay:
    to store a part and to combine takes a program 3 to 6 us, while it has no loads under way, and
    pieces of 1.5 times as many as there are programs take the time of twice as many."""
    programs = _PROGRAMS * processors
    waves = rows * kv_heads / programs
    tokens = 1024 if waves > 0.3 else 512 if waves > 0.2 else 256
    if waves <= 1.5:
        # There may be a few more pieces than programs, which must not double the time: the first to
        # end makes room for one more.
        programs += processors
    most = 16
    while most < 128 and rows * kv_heads * most < programs:
        most *= 2
    return Cut(tokens, most, programs)


def most_pieces(rows: int, kv_heads: int, processors: int) -> int:
    """Of any step of up to ``rows`` rows: more rows may have fewer pieces together, as ``cut_for``
    gives each of them fewer."""
    few = min(rows, FEW_ROWS) * SPLITS
    many = range(FEW_ROWS + 1, rows + 1)
    return max([few, *(count * cut_for(count, kv_heads, processors).most for count in many)])


@triton.jit(do_not_specialize=["rows", "largest", "most", "programs"])
def _plan(
    queries,
    slots,
    positions,
    pieces,
    taken,
    rows,
    largest,
    most,
    programs,
    TILE: tl.constexpr,
    LAYERS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    real = row < rows
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(queries + row, real, 0)
    slot = tl.load(slots + token, real, 0)
    length = tl.load(positions + token, real, -1) + 1
    tiles = (length + TILE - 1) // TILE
    count = tl.minimum((tiles * TILE + largest - 1) // largest, most)
    size = tl.maximum((tiles + count - 1) // tl.maximum(count, 1), 1)
    # Rounding up may leave nothing for the last ones.
    count = (tiles + size - 1) // size
    # Long pieces first: what is left at the end is short.
    long = size * TILE * 2 > largest
    longs = tl.where(long, count, 0)
    shorts = tl.where(long, 0, count)
    all_long = tl.sum(longs, 0)
    begin = tl.where(long, tl.cumsum(longs, 0) - longs, all_long + tl.cumsum(shorts, 0) - shorts)
    tl.store(pieces, all_long + tl.sum(shorts, 0))
    # Each program begins with the pair of its own number.
    tl.store(taken + tl.arange(0, LAYERS), tl.zeros([LAYERS], tl.int32) + programs)
    for piece in range(tl.max(count, 0)):
        at = pieces + (1 + begin + piece) * 8
        mine = real & (piece < count)
        tl.store(at, token, mine)
        tl.store(at + 1, slot, mine)
        tl.store(at + 2, length, mine)
        tl.store(at + 3, piece * size, mine)
        tl.store(at + 4, tl.minimum((piece + 1) * size, tiles), mine)
        tl.store(at + 5, begin, mine)
        tl.store(at + 6, count, mine)
        tl.store(at + 7, row, mine)


@triton.jit
def line_of(blocks, tile, BLOCK_TOKENS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr):
    """Where in the region's lines a tile of a slot begins, in layer 0 and head 0."""
    start = tile * TILE
    block = tl.load(blocks + start // BLOCK_TOKENS) // HEAD_DIM
    return block.to(tl.int32) + start % BLOCK_TOKENS


@triton.jit
def _attend_piece(
    query,
    lines,
    blocks,
    head_line,
    first,
    last,
    length,
    scale,
    VALUE_LINES: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
):
    # Keys times queries, not queries times keys: the few heads of a group are then the narrow side
    # of the product, which may be 8 wide, and little of it is padding.
    highest = tl.full([PADDED], float("-inf"), tl.float32)
    mass = tl.zeros([PADDED], tl.float32)
    total = tl.zeros([HEAD_DIM, PADDED], tl.float32)
    # Whole tiles first, without masks: a mask would take keys and values through registers.
    whole = tl.minimum(last, length // TILE)
    for tile in tl.range(first, whole, num_stages=STAGES):
        line = head_line + line_of(blocks, tile, BLOCK_TOKENS, HEAD_DIM, TILE)
        key = lines.load([line, 0])
        value = lines.load([line + VALUE_LINES, 0])
        score = tl.dot(key, query, input_precision="ieee") * scale
        highest, mass, total = fold_narrow(score, value, highest, mass, total)
    if whole < last:
        line = head_line + line_of(blocks, whole, BLOCK_TOKENS, HEAD_DIM, TILE)
        inside = (whole * TILE + tl.arange(0, TILE) < length)[:, None]
        key = lines.load([line, 0])
        # What follows the context in its last block may be anything, NaN too.
        value = tl.where(inside, lines.load([line + VALUE_LINES, 0]), 0.0)
        score = tl.dot(key, query, input_precision="ieee") * scale
        score = tl.where(inside, score, float("-inf"))
        highest, mass, total = fold_narrow(score, value, highest, mass, total)
    return highest, mass, total


@triton.jit(do_not_specialize=["layer"])
def _decode_attention(
    qkv,
    table,
    lines,
    pieces,
    taken,
    arrived,
    partial,
    masses,
    out,
    table_width,
    layer,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    group = tl.arange(0, PADDED)
    lanes = tl.arange(0, HEAD_DIM)
    real = group < GROUP
    width: tl.constexpr = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    layer_line = layer * (2 * KV_HEADS * BLOCK_TOKENS)
    if PDL:
        gdc_launch_dependents()
    work = tl.program_id(0)
    # The list is as the step's first kernels left it: it is read before the wait.
    end = tl.load(pieces) * KV_HEADS
    while work < end:
        kv_head = work % KV_HEADS
        piece = work // KV_HEADS
        record = pieces + (1 + piece) * 8
        token = tl.load(record).to(tl.int64)
        slot = tl.load(record + 1).to(tl.int64)
        length = tl.load(record + 2)
        first = tl.load(record + 3)
        last = tl.load(record + 4)
        begin = tl.load(record + 5)
        count = tl.load(record + 6)
        row = tl.load(record + 7)
        heads = kv_head * GROUP + group
        blocks = table + slot * table_width
        head_line = layer_line + kv_head * BLOCK_TOKENS
        if PDL:
            gdc_wait()
        following = tl.atomic_add(taken + layer, 1, sem="relaxed")
        place = token * width + heads[None, :] * HEAD_DIM + lanes[:, None]
        highest, mass, total = _attend_piece(
            tl.load(qkv + place, real[None, :], 0.0),
            lines,
            blocks,
            head_line,
            first,
            last,
            length,
            scale,
            KV_HEADS * BLOCK_TOKENS,
            PADDED,
            HEAD_DIM,
            BLOCK_TOKENS,
            TILE,
            STAGES,
        )
        place = out + token * (HEADS * HEAD_DIM) + heads[None, :] * HEAD_DIM + lanes[:, None]
        if count == 1:
            tl.store(place, (total / mass[None, :]).to(out.dtype.element_ty), real[None, :])
        else:
            at = piece.to(tl.int64) * HEADS + heads
            tl.store(masses + at, highest + tl.log2(mass), real)
            tl.store(
                partial + at[None, :] * HEAD_DIM + lanes[:, None],
                total / mass[None, :],
                real[None, :],
            )
            # Everybody's stores come before the arrival that tells of them.
            tl.debug_barrier()
            met = tl.atomic_add(arrived + row * KV_HEADS + kv_head, 1, sem="acq_rel")
            if met == count - 1:
                tl.debug_barrier()
                highest = tl.full([PADDED], float("-inf"), tl.float32)
                mass = tl.zeros([PADDED], tl.float32)
                total = tl.zeros([HEAD_DIM, PADDED], tl.float32)
                for other in range(count):
                    at = (begin + other).to(tl.int64) * HEADS + heads
                    weight = tl.load(masses + at, real, 0.0, cache_modifier=".cg")
                    part = tl.load(
                        partial + at[None, :] * HEAD_DIM + lanes[:, None],
                        real[None, :],
                        0.0,
                        cache_modifier=".cg",
                    )
                    highest, mass, total = merge_narrow(weight, part, highest, mass, total)
                tl.store(place, (total / mass[None, :]).to(out.dtype.element_ty), real[None, :])
                tl.store(arrived + row * KV_HEADS + kv_head, 0)
        work = following
    if PDL:
        # Also where there was nothing to do: who waits for this kernel relies on those before it.
        gdc_wait()


@triton.jit(do_not_specialize=["layer"])
def _few_rows(
    qkv,
    queries,
    slots,
    positions,
    table,
    lines,
    partial,
    masses,
    table_width,
    layer,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    group = tl.arange(0, PADDED)
    lanes = tl.arange(0, HEAD_DIM)
    real = group < GROUP
    if PDL:
        gdc_launch_dependents()
    token = tl.load(queries + row).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    length = tl.load(positions + token) + 1
    tiles = tl.cdiv(length, TILE)
    share = tl.cdiv(tiles, SPLITS)
    first = split * share
    last = tl.minimum(first + share, tiles)
    heads = kv_head * GROUP + group
    at = (row * HEADS + heads) * SPLITS + split
    if PDL:
        gdc_wait()
    if first < last:
        place = token * ((HEADS + 2 * KV_HEADS) * HEAD_DIM) + heads[None, :] * HEAD_DIM
        highest, mass, total = _attend_piece(
            tl.load(qkv + place + lanes[:, None], real[None, :], 0.0),
            lines,
            table + slot * table_width,
            layer * (2 * KV_HEADS * BLOCK_TOKENS) + kv_head * BLOCK_TOKENS,
            first,
            last,
            length,
            scale,
            KV_HEADS * BLOCK_TOKENS,
            PADDED,
            HEAD_DIM,
            BLOCK_TOKENS,
            TILE,
            STAGES,
        )
        tl.store(masses + at, highest + tl.log2(mass), real)
        tl.store(
            partial + at[None, :] * HEAD_DIM + lanes[:, None], total / mass[None, :], real[None, :]
        )
    else:
        tl.store(masses + at, tl.full([PADDED], float("-inf"), tl.float32), real)


@triton.jit
def _combine(
    queries,
    partial,
    masses,
    out,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    splits = tl.arange(0, SPLITS)
    lanes = tl.arange(0, HEAD_DIM)
    token = tl.load(queries + row).to(tl.int64)
    at = (row * HEADS + head) * SPLITS + splits
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    weight = tl.load(masses + at)
    used = weight > float("-inf")
    top = tl.max(weight, 0)
    weight = tl.exp2(weight - top)
    # Scratch of a split that had nothing to do was not written in this step.
    values = tl.load(partial + at[:, None] * HEAD_DIM + lanes[None, :], used[:, None], 0.0)
    mass = tl.sum(weight, 0)
    total = tl.sum(values * weight[:, None], 0) / mass
    tl.store(out + (token * HEADS + head) * HEAD_DIM + lanes, total.to(out.dtype.element_ty))


class DecodeAttention:
    """Scratch of the kernels for at most ``rows`` rows, and their launches."""

    def __init__(
        self,
        region: torch.Tensor,
        *,
        rows: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_tokens: int,
        processors: int,
    ) -> None:
        """``region`` is flat, of the cache's type. Raises ModelRejected where lines of a head outnumber
        what 32 bits count: small heads in a very large cache.
        """
        if region.numel() // head_dim > _MOST_LINES:
            raise ModelRejected(
                f"a KV cache of {region.nbytes / 2**30:.1f} GiB has "
                f"{region.numel() // head_dim:,} lines of head_dim {head_dim}, "
                f"and the CUDA kernels count {_MOST_LINES:,}: lower cache_bytes"
            )
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._processors = processors
        self._tile = min(block_tokens, TILE)
        lines = region[: region.numel() // head_dim * head_dim].view(-1, head_dim)
        self._lines = TensorDescriptor(
            lines, list(lines.shape), list(lines.stride()), [self._tile, head_dim]
        )
        group = heads // kv_heads
        self._scale = _LOG2_E * head_dim**-0.5
        self._shape = {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "GROUP": group,
            "PADDED": max(8, power_of_two(group)),
            "HEAD_DIM": head_dim,
            "BLOCK_TOKENS": block_tokens,
            "TILE": self._tile,
            "PDL": DEPENDENT_LAUNCH,
        }
        most = most_pieces(rows, kv_heads, processors)

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=region.device)

        self._pieces = zeros(1 + most, _WORDS, dtype=torch.int32)
        self._taken = zeros(power_of_two(layers), dtype=torch.int32)
        self._arrived = zeros(rows, kv_heads, dtype=torch.int32)
        self._partial = zeros(most, heads, head_dim, dtype=torch.float32)
        self._masses = zeros(most, heads, dtype=torch.float32)
        self._planned: tuple[torch.Tensor, ...] = ()
        """queries, slots, positions of the step."""

    def plan(self, queries: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Takes the tokens ``queries`` for the layers that follow; once a step.

        Between this and ``attend`` a kernel must run that waits and only then lets the next begin.
        """
        rows = queries.shape[0]
        self._planned = (queries, slots, positions)
        if rows <= FEW_ROWS:
            return
        cut = cut_for(rows, self._kv_heads, self._processors)
        _plan[(1,)](
            queries,
            slots,
            positions,
            self._pieces,
            self._taken,
            rows,
            cut.tokens,
            cut.most,
            cut.programs,
            TILE=self._tile,
            LAYERS=self._taken.shape[0],
            BLOCK=power_of_two(self._arrived.shape[0]),
            PDL=DEPENDENT_LAUNCH,
            num_warps=4,
            **OPTIONS,
        )

    def attend(
        self,
        qkv: torch.Tensor,
        table: torch.Tensor,
        out: torch.Tensor,
        *,
        rows: int,
        layer: int,
    ) -> None:
        """Attention of the ``rows`` tokens of the plan over their context, themselves included."""
        if rows <= FEW_ROWS:
            self._attend_few(qkv, table, out, layer)
            return
        _decode_attention[(cut_for(rows, self._kv_heads, self._processors).programs,)](
            qkv,
            table,
            self._lines,
            self._pieces,
            self._taken,
            self._arrived,
            self._partial,
            self._masses,
            out,
            table.shape[1],
            layer,
            self._scale,
            **self._shape,
            STAGES=_STAGES,
            num_warps=1,
            **OPTIONS,
        )

    def _attend_few(
        self,
        qkv: torch.Tensor,
        table: torch.Tensor,
        out: torch.Tensor,
        layer: int,
    ) -> None:
        queries, slots, positions = self._planned
        rows = queries.shape[0]
        _few_rows[(rows, self._kv_heads, SPLITS)](
            qkv,
            queries,
            slots,
            positions,
            table,
            self._lines,
            self._partial,
            self._masses,
            table.shape[1],
            layer,
            self._scale,
            **self._shape,
            SPLITS=SPLITS,
            STAGES=_FEW_STAGES,
            num_warps=2,
            **OPTIONS,
        )
        _combine[(rows, self._heads)](
            queries,
            self._partial,
            self._masses,
            out,
            HEADS=self._heads,
            HEAD_DIM=self._head_dim,
            SPLITS=SPLITS,
            PDL=DEPENDENT_LAUNCH,
            num_warps=2,
            **OPTIONS,
        )
