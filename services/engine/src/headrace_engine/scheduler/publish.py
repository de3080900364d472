"""Publication: complete blocks become discoverable; poisoned ones and all made of them do not stay.

Owner    engine thread
Writes   the trie, LogicalBlock.valid
Never    allocates
Rules    cache.index-while-decoding, cache.poison-spreads, siblings.kept, states.left-behind
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from headrace_engine.cache.block import NOBODY, LogicalBlock, SequenceBlocks, as_bytes
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.scheduler.admit import comparable, marks_in
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.sequence import Sequence


def publish_complete(
    pool: LogicalBlockPool, holder: SequenceBlocks, sequence: Sequence, written: int
) -> None:
    """Indexes blocks whose tokens are all known and whose KV lies below ``written``."""
    size, chained, media = pool.block_tokens, holder.chained, sequence.request.media
    end, last = chained * size + size, min(written, sequence.length)
    while end <= last and holder.chain is not None and holder.blocks[chained].valid:
        marks = marks_in(media, end - size, end) if media else ()
        pool.index_next(holder, as_bytes(sequence.tokens[end - size : end]), marks)
        chained, end = chained + 1, end + size


def keep_tail(
    pool: LogicalBlockPool,
    holder: SequenceBlocks,
    sequence: Sequence,
    written: int,
    *,
    generated: bool,
) -> None:
    """Of a sequence that leaves: its last block, which is not full, stays offered, with what was
    ``generated`` there or without. Unless another is there that has all of it.
    """
    chained = holder.chained
    if holder.chain is None or chained >= len(holder.blocks) or not holder.blocks[chained].valid:
        return
    block = holder.blocks[chained]
    end, _ = comparable(sequence.request.media, block.offset, min(written, sequence.length))
    own = end - block.offset if generated else 0
    count = max(own, block.offered)
    if not count:
        return
    tokens = as_bytes(sequence.tokens[block.offset : block.offset + count])
    marks = marks_in(sequence.request.media, block.offset, block.offset + count)
    replaces = partial(_replaces, block, count)
    found = pool.closest(holder, holder.chain, tokens, marks, block, replaces)
    if found is not None and found[1] == count and replaces(found[0]):
        if block.offered:
            pool.withdraw(block)
    elif own > block.offered:
        if block.offered:
            pool.withdraw(block)
        pool.offer(holder, tokens, marks)
        block.written = own


def _replaces(block: LogicalBlock, count: int, other: LogicalBlock) -> bool:
    return other.extent >= count and len(other.states) >= len(block.states)


def block_at(
    settings: SchedulerSettings, holder: SequenceBlocks, sequence: Sequence, position: int
) -> LogicalBlock | None:
    """The block with which others would find a state at ``position``; None: nobody would."""
    if position < 1 or (settings.cache_generation == "none" and position > sequence.prompt_tokens):
        return None
    block = holder.blocks[(position - 1) // holder.blocks[0].capacity]
    found = block.indexed or block.offset + block.offered >= position
    taken = any(state.offset == position for state in block.states)
    return block if found and not taken else None


def leave_frontier(
    pool: LogicalBlockPool, holder: SequenceBlocks, block: LogicalBlock, position: int
) -> None:
    """A sequence that leaves gives its state to the block in which it stands."""
    state = holder.frontier
    if state is None or not state.allocated or block.extent < position - block.offset:
        return
    state.offset, state.publisher = position, holder.number
    state.origins = frozenset(holder.origins)
    pool.keep_frontier(holder, block)


def mark_produced(holder: SequenceBlocks, begin: int, end: int, block_tokens: int) -> None:
    """Blocks that this pass writes become valid; an indexed one only when it is covered fully."""
    origins = frozenset(holder.origins) if holder.origins else NOBODY
    for block in holder.blocks[begin // block_tokens : -(-end // block_tokens)]:
        if block.offered:
            block.written = max(block.written, min(block.offered, end - block.offset))
        if origins and not (block.indexed and block.valid):
            block.origins = origins
        if not block.valid and (block.end <= end or not block.indexed):
            block.valid = True
            block.publisher = holder.number
            for other in block.run.holders:
                other.changed = True


def adopt(
    holder: SequenceBlocks, source: LogicalBlock, position: int, resident: Iterable[int]
) -> None:
    """The sequence goes on, from ``position``, with what it copied from ``source``."""
    for number in (source.publisher, *source.origins):
        if number in resident and number != holder.number:
            holder.origins[number] = min(position, holder.origins.get(number, position))


def invalidate_published(
    pool: LogicalBlockPool, holder: SequenceBlocks, holders: Iterable[SequenceBlocks]
) -> dict[int, int]:
    """What this sequence computed is not to be trusted, nor anything made from it.

    ``holders`` are all there are. Returns, for every other sequence that has such content, the
    first position it lost.
    """
    number = holder.number
    cuts = {
        other.number: other.origins[number]
        for other in holders
        if number in other.origins and other is not holder
    }
    poisoned = dict.fromkeys(b for b in holder.blocks if b.publisher == number)
    for other in holders:
        if other.number in cuts:
            poisoned |= dict.fromkeys(b for b in other.blocks if number in b.origins)
    # A node is inserted after its parent, so one look in order of insertion finds all descendants.
    for node in (*pool.trie.nodes(), *pool.trie.offered):
        if node.publisher == number or node.parent in poisoned or number in node.origins:
            poisoned[node] = None
        for state in node.states:
            if state.publisher == number or number in state.origins:
                pool.slots.objects.free(pool.unpin(state))
    for block in poisoned:
        for other in block.holders:
            if other is not holder:
                cuts[other.number] = min(cuts.get(other.number, block.offset), block.offset)
    for block in sorted(poisoned, key=_offset, reverse=True):
        pool.invalidate(block)
    return cuts


def _offset(block: LogicalBlock) -> int:
    return block.offset
