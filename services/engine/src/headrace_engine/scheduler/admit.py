"""Admission of a prompt: share what the trie knows, index what it does not. No memory yet.

Owner    engine thread
Writes   SequenceBlocks of the admitted sequence, the trie
Never    allocates memory; judges whether shared content is valid (that is plan_resume's)
Rules    cache.exact-identity, blocks.stop-at-first-private, cache.first-wins, siblings.bound-once
Next     headrace_engine.scheduler.plan
"""

from __future__ import annotations

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks, Sibling, as_bytes
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import MediaSpan
from headrace_engine.state.sequence import Sequence


def admit_prompt(
    pool: LogicalBlockPool,
    holder: SequenceBlocks,
    sequence: Sequence,
    settings: SchedulerSettings,
) -> None:
    """Gives the sequence blocks for every known token, shared where the content is known."""
    if settings.prefix_cache:
        tokens = as_bytes(sequence.tokens[: sequence.length])
        media = sequence.request.media
        match_prompt(pool, holder, tokens, media)
        if not media:
            holder.prefix = tokens
        parent = holder.chain
        assert parent is not None
        index_missing_blocks(pool, holder, tokens, media)
        create_missing_blocks(pool, holder, sequence.length)
        offers = settings.cache_prompt == "all" or touches_media(
            media, sequence.length // pool.block_tokens * pool.block_tokens, sequence.length
        )
        setup_partial_siblings(pool, holder, parent, tokens, media, offers=offers)
    else:
        holder.chain = None
        create_missing_blocks(pool, holder, sequence.length)


def create_missing_blocks(pool: LogicalBlockPool, holder: SequenceBlocks, length: int) -> None:
    """Private blocks, without memory, until ``length`` positions have one."""
    while len(holder.blocks) * pool.block_tokens < length:
        pool.extend(holder)


def match_prompt(
    pool: LogicalBlockPool,
    holder: SequenceBlocks,
    tokens: bytes,
    media: tuple[MediaSpan, ...] = (),
) -> None:
    """Shares the longest known run of full blocks. Their content need not be valid yet."""
    assert holder.chain is not None
    size = 4 * pool.block_tokens
    if not media:
        pool.share(holder, pool.trie.walk(holder.chain, tokens, size))
        return
    found, parent = list[LogicalBlock](), holder.chain
    for begin in range(0, len(tokens) - size + 1, size):
        marks = marks_in(media, begin // 4, begin // 4 + pool.block_tokens)
        node = pool.trie.find(parent, tokens[begin : begin + size], marks)
        if node is None or not all(marks):
            break
        found.append(node)
        parent = node
    pool.share(holder, found)


def index_missing_blocks(
    pool: LogicalBlockPool,
    holder: SequenceBlocks,
    tokens: bytes,
    media: tuple[MediaSpan, ...] = (),
) -> None:
    """New blocks for what was not found; full ones can be found by others from now on.

    After the first that cannot be indexed nothing further is: a later block under an earlier
    parent would be found at the wrong position.
    """
    size = 4 * pool.block_tokens
    for begin in range(len(holder.blocks) * size, len(tokens) - size + 1, size):
        block = pool.extend(holder)
        marks = marks_in(media, block.offset, block.end) if media else ()
        if not pool.index_next(holder, tokens[begin : begin + size], marks):
            return


def setup_partial_siblings(
    pool: LogicalBlockPool,
    holder: SequenceBlocks,
    parent: LogicalBlock,
    tokens: bytes,
    media: tuple[MediaSpan, ...] = (),
    *,
    offers: bool,
) -> None:
    """Finds the block that begins as this prompt goes on behind ``parent``, the last shared block;
    and, if it ``offers``, lets others find the prompt's last block, which is not full.

    Bound once, to what is the same for good: whether it can be copied is seen in each pass.
    """
    own = holder.blocks[parent.end // pool.block_tokens :]
    begin, end = parent.end, min(parent.end + pool.block_tokens, len(tokens) // 4)
    known, marks = comparable(media, begin, end)
    if own and known > begin:
        found = pool.closest(holder, parent, tokens[4 * begin : 4 * known], marks, own[0])
        if found is not None:
            holder.sibling = Sibling(*found)
    begin = holder.chained * pool.block_tokens
    known, marks = comparable(media, begin, min(begin + pool.block_tokens, len(tokens) // 4))
    if offers and holder.chain is not None and known > begin:
        pool.offer(holder, tokens[4 * begin : 4 * known], marks)


def marks_in(media: tuple[MediaSpan, ...], begin: int, end: int) -> tuple[bytes, ...]:
    """Fingerprints of the items whose first token lies in ``[begin, end)``, as blocks have them.

    An empty one for an item that is equal to nothing.
    """
    return tuple(
        (span.first - begin).to_bytes(4, "little")
        + (span.end - span.first).to_bytes(4, "little")
        + span.fingerprint
        if any(span.fingerprint)
        else b""
        for span in media
        if begin <= span.first < end
    )


def comparable(media: tuple[MediaSpan, ...], begin: int, end: int) -> tuple[int, tuple[bytes, ...]]:
    """How far content from ``begin`` can be compared, at most to ``end``, and its fingerprints."""
    if not media:
        return end, ()
    for span in media:
        if begin <= span.first < end and not any(span.fingerprint):
            end = span.first
    return end, marks_in(media, begin, end)


def touches_media(media: tuple[MediaSpan, ...], begin: int, end: int) -> bool:
    """Whether an item has a token in ``[begin, end)``."""
    return any(span.first < end and begin < span.end for span in media)
