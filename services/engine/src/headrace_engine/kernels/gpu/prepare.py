"""From one packed int32 message to what a step reads: block tables, tokens, positions, targets.

Message  ``inbox[capacity]`` int32, see ``Message``: counts, then columns at fixed places
Shapes   table[slots + 1, blocks] int64: item offsets in the region; the last slot is the spare
         one that padding rows use, and its table is 0: they read block 0 and write nothing
         last[slots + 1] int32: the last sampled token of each slot
Order    one program applies table updates; then a program a row fills its tokens, and in a step with
         prompts one more sees to the tokens that only fill the step up
Twin     reference.prepare
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS

COUNTS = 8
"""Words before the columns: rows, updates, tokens, then unused."""
UNIT_BYTES = 256
"""Block offsets travel in units of this, so that 32 bits name 512 GiB."""


ALIGNMENT = 4
"""Every column begins at a multiple of this many words (16 bytes), whatever its length: a kernel
is compiled anew for a pointer of another alignment."""


def aligned(words: int) -> int:
    """``words`` rounded up to ALIGNMENT."""
    return -(-words // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Message:
    """Where the columns of a message lie. All are int32; capacities are multiples of ALIGNMENT."""

    rows: int
    """Capacity in rows."""
    updates: int
    """Capacity in table updates."""
    tokens: int
    """Capacity in host tokens."""

    @property
    def slots(self) -> int:
        """slots[rows]."""
        return COUNTS

    @property
    def begins(self) -> int:
        """begins[rows]: position of each row's first token."""
        return self.slots + self.rows

    @property
    def lengths(self) -> int:
        """lengths[rows]."""
        return self.begins + self.rows

    @property
    def offsets(self) -> int:
        """offsets[rows]: index of each row's first token in the batch."""
        return self.lengths + self.rows

    @property
    def store_from(self) -> int:
        """store_from[rows]."""
        return self.offsets + self.rows

    @property
    def samples(self) -> int:
        """samples[rows]: index of the token to sample among the generated ones."""
        return self.store_from + self.rows

    @property
    def update_slots(self) -> int:
        """update_slots[updates]."""
        return self.samples + self.rows

    @property
    def update_blocks(self) -> int:
        """update_blocks[updates]: block index in the slot's table."""
        return self.update_slots + self.updates

    @property
    def update_units(self) -> int:
        """update_units[updates]: byte offset in the region / UNIT_BYTES."""
        return self.update_blocks + self.updates

    @property
    def host_tokens(self) -> int:
        """host_tokens[tokens]; -1 where the slot's last sampled token goes in."""
        return self.update_units + self.updates

    @property
    def size(self) -> int:
        """Words in all."""
        return self.host_tokens + self.tokens


_PLACES = ("AT_SLOTS", "AT_BEGINS", "AT_LENGTHS", "AT_OFFSETS", "AT_STORE", "AT_TOKENS")


@triton.jit(do_not_specialize=["table_width", "AT_SLOTS", "AT_BLOCKS", "AT_UNITS"])
def _update_table(
    inbox,
    table,
    table_width,
    AT_SLOTS,
    AT_BLOCKS,
    AT_UNITS,
    UNIT_ITEMS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    count = tl.load(inbox + 1)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < count
    slot = tl.load(inbox + AT_SLOTS + index, live, 0).to(tl.int64)
    block = tl.load(inbox + AT_BLOCKS + index, live, 0)
    unit = tl.load(inbox + AT_UNITS + index, live, 0).to(tl.int64)
    tl.store(table + slot * table_width + block, unit * UNIT_ITEMS, live)


@triton.jit(do_not_specialize=["table_width", "spare", "size", *_PLACES])
def _prepare(
    inbox,
    table,
    last,
    tokens,
    slots,
    positions,
    targets,
    table_width,
    spare,
    size,
    AT_SLOTS,
    AT_BEGINS,
    AT_LENGTHS,
    AT_OFFSETS,
    AT_STORE,
    AT_TOKENS,
    BLOCK_TOKENS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    PROMPTS: tl.constexpr,
    PDL: tl.constexpr,
):
    row = tl.program_id(0)
    step = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = tl.load(inbox)
    if row < rows:
        slot = tl.load(inbox + AT_SLOTS + row)
        length = tl.load(inbox + AT_LENGTHS + row)
        offset = tl.load(inbox + AT_OFFSETS + row)
        position = tl.load(inbox + AT_BEGINS + row) + step
        live = step < length
        token = tl.load(inbox + AT_TOKENS + offset + step, live, 0)
        token = tl.where(token < 0, tl.load(last + slot), token)
        place = table + slot.to(tl.int64) * table_width + position // BLOCK_TOKENS
        block = tl.load(place, live, 0)
        target = block + (position % BLOCK_TOKENS) * HEAD_DIM
        target = tl.where(position >= tl.load(inbox + AT_STORE + row), target, -1)
        at = offset + step
        tl.store(tokens + at, token, live)
        tl.store(slots + at, tl.zeros([BLOCK], tl.int32) + slot, live)
        tl.store(positions + at, position, live)
        tl.store(targets + at, target, live)
    elif PROMPTS:
        # Tokens that only fill the step up write no KV. Programs of other rows have nothing to do.
        at = tl.load(inbox + 2) + step
        tl.store(targets + at, tl.zeros([BLOCK], tl.int64) - 1, (row == rows) & (at < size))
    else:
        # A padding row of a captured step: one token at position 0 of the spare slot.
        live = step == 0
        zero = tl.zeros([BLOCK], tl.int32)
        tl.store(tokens + row + step, zero, live)
        tl.store(slots + row + step, zero + spare, live)
        tl.store(positions + row + step, zero, live)
        tl.store(targets + row + step, zero.to(tl.int64) - 1, live)


def prepare(
    message: Message,
    inbox: torch.Tensor,
    table: torch.Tensor,
    last: torch.Tensor,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    targets: torch.Tensor,
    *,
    rows: int,
    longest: int,
    updates: int,
    block_tokens: int,
    head_dim: int,
    item_bytes: int,
    size: int | None = None,
) -> None:
    """Fills the step's arrays. ``rows``, ``longest`` and ``updates`` bound what the message has.

    Without ``size`` all rows are of one token, and those past the message's count become padding. With
    it the step has so many tokens, of which those past the message's count write no KV; ``longest``
    bounds how many those are, too.
    """
    width = table.shape[1]
    update_block = 256
    if updates:
        _update_table[(triton.cdiv(updates, update_block),)](
            inbox,
            table,
            width,
            message.update_slots,
            message.update_blocks,
            message.update_units,
            UNIT_ITEMS=UNIT_BYTES // item_bytes,
            BLOCK=update_block,
            PDL=DEPENDENT_LAUNCH,
            num_warps=4,
            **OPTIONS,
        )
    block = 1 if size is None else 256
    _prepare[(rows + (size is not None), triton.cdiv(longest, block))](
        inbox,
        table,
        last,
        tokens,
        slots,
        positions,
        targets,
        width,
        table.shape[0] - 1,
        size or rows,
        message.slots,
        message.begins,
        message.lengths,
        message.offsets,
        message.store_from,
        message.host_tokens,
        BLOCK_TOKENS=block_tokens,
        HEAD_DIM=head_dim,
        BLOCK=block,
        PROMPTS=size is not None,
        PDL=DEPENDENT_LAUNCH,
        num_warps=1 if block == 1 else 4,
        **OPTIONS,
    )
