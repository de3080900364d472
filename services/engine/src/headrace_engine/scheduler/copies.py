"""Copies of cache objects inside the region, as the executor wants them.

Owner    engine thread
Writes   nothing
Never    looks at bytes; decides what is copied
Rules    blocks.bytes-are-opaque, siblings.copied-before
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from array import array

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.state.batch import ResolvedCopy


def resolve_copy(
    pool: LogicalBlockPool, source: LogicalBlock, target: LogicalBlock
) -> list[ResolvedCopy]:
    """One copy for each part. Both have memory, of the same type."""
    assert source.slot is not None
    assert target.slot is not None
    assert source.slot.type == target.slot.type, "a copy between objects of two types"
    return [
        ResolvedCopy(at, to, size)
        for at, to, size in zip(
            addresses_of(source),
            addresses_of(target),
            pool.slots.objects.sizes(source.slot.type),
            strict=True,
        )
    ]


def addresses_of(block: LogicalBlock) -> tuple[int, ...]:
    """Byte offsets of the parts of what has memory."""
    assert block.slot is not None
    assert block.slot.allocation is not None, "it has no memory"
    return block.slot.allocation.addresses


def addresses_in_order(holder: SequenceBlocks) -> array[int]:
    """Byte offsets of a sequence's blocks that have memory.

    Behind what is known may be a block that has none: it could not get any before.
    """
    addresses, blocks, at = array("q"), holder.blocks, 0
    while at < len(blocks):
        run = blocks[at].run
        if run.addresses is None:
            found = [
                allocation.addresses[0]  # the one there is, as a block is a simple object
                for block in blocks[at : run.end]
                if (slot := block.slot) is not None and (allocation := slot.allocation) is not None
            ]
            run.addresses = array("q", found)
        addresses += run.addresses
        at = run.end
    return addresses
