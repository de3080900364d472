"""Publication: complete blocks become discoverable; poisoned ones and all made of them do not stay.

Owner    engine thread
Writes   the trie, LogicalBlock.valid
Never    allocates
Rules    cache.index-while-decoding, cache.poison-spreads, blocks.stop-at-first-private
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks, as_bytes
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.state.sequence import Sequence


def publish_complete(
    pool: LogicalBlockPool, holder: SequenceBlocks, sequence: Sequence, written: int
) -> None:
    """Indexes blocks whose tokens are all known and whose KV lies below ``written``."""
    size, chained = pool.block_tokens, holder.chained
    end = chained * size + size
    while end <= written and end <= sequence.length and holder.chain is not None:
        if not holder.blocks[chained].valid:
            return
        pool.index_next(holder, as_bytes(sequence.tokens[end - size : end]))
        chained, end = chained + 1, end + size


def mark_produced(holder: SequenceBlocks, begin: int, end: int, block_tokens: int) -> None:
    """Blocks that this pass writes become valid; an indexed one only when it is covered fully."""
    for block in holder.blocks[begin // block_tokens : -(-end // block_tokens)]:
        if not block.valid and (block.end <= end or not block.indexed):
            block.valid = True
            block.publisher = holder.number
            for other in block.holders:
                other.changed = True


def invalidate_published(pool: LogicalBlockPool, holder: SequenceBlocks) -> dict[int, int]:
    """What this sequence computed is not to be trusted, nor anything made from it.

    Returns, for every other sequence that holds such a block, the first position it lost.
    """
    poisoned = dict.fromkeys(b for b in holder.blocks if b.publisher == holder.number)
    # A node is inserted after its parent, so one look in order of insertion finds all descendants.
    for node in pool.trie.nodes():
        if node.publisher == holder.number or node.parent in poisoned:
            poisoned[node] = None
    cuts: dict[int, int] = {}
    for block in poisoned:
        for other in block.holders:
            if other is not holder:
                cuts[other.number] = min(cuts.get(other.number, block.offset), block.offset)
    for block in sorted(poisoned, key=_offset, reverse=True):
        pool.invalidate(block)
    return cuts


def _offset(block: LogicalBlock) -> int:
    return block.offset
