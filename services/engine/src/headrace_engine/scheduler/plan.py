"""Plans: where a sequence can go on, and which blocks it lacks. They change nothing.

Owner    engine thread
Writes   nothing
Never    allocates, activates, evicts
Rules    sched.planning-is-free, sched.at-least-one-token, blocks.three-predicates
Next     headrace_engine.scheduler.grant
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.state.sequence import SequenceColumns


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """How a sequence that holds no slot, or has known context left, can go on."""

    resume: int
    """Position of the first token to compute; everything before it is valid."""
    store_from: int
    """KV below it is shared and valid: it is read, never written."""
    missing: tuple[LogicalBlock, ...]
    """Blocks of the known context without memory, in position order."""


def plan_resume(
    holder: SequenceBlocks,
    *,
    known: int,
    filled: int,
    lost: Set[LogicalBlock],
    first_block: int = 0,
) -> ResumePlan:
    """Walks the blocks to the first that is not valid or has no memory.

    ``filled`` positions were written by committed passes, so that the valid part of a private
    block is known. Blocks in ``lost`` count as without memory: this pass has taken theirs.
    At least the last known token is always computed, since its logits are wanted.
    """
    size = holder.blocks[0].capacity
    upper = known - 1
    resume = store_from = first_block * size
    for block in holder.blocks[first_block:]:
        if not block.valid or block in lost:
            break
        extent = size if block.indexed else min(max(filled - block.offset, 0), size)
        resume = block.offset + extent
        if extent < size:
            break
        if block.indexed:
            store_from = resume
    needed = -(-known // size)
    missing = tuple(
        b
        for b in holder.blocks[:needed]
        if (held := b.slot) is None or held.allocation is None or b in lost
    )
    return ResumePlan(min(resume, upper), store_from, missing)


class Decodes(NamedTuple):
    """Rows that decode one token."""

    slots: NDArray[np.intp]
    """Indices as numpy wants them: others cost five times as much at every use."""
    begins: NDArray[np.int32]
    """Position of the token that each runs."""

    def only(self, which: NDArray[np.bool_]) -> Decodes:
        """Some of them."""
        return Decodes(self.slots[which], self.begins[which])


def plan_continue(
    columns: SequenceColumns, decoding: NDArray[np.intp]
) -> tuple[Decodes, NDArray[np.intp]]:
    """Who decodes one token, and the slots among them that need a block for it.

    A slot whose last wanted token is already in flight is left out.
    """
    decodes = Decodes(decoding, columns.planned[decoding])
    # One that decodes has sampled one token more than it has planned.
    wanting = decodes.begins < columns.limit[decoding] - 1
    if not wanting.all():
        decodes = decodes.only(wanting)
    return decodes, decodes.slots[decodes.begins >= columns.capacity[decodes.slots]]
