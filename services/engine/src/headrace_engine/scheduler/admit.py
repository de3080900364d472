"""Admission of a prompt: share what the trie knows, index what it does not. No memory yet.

Owner    engine thread
Writes   SequenceBlocks of the admitted sequence, the trie
Never    allocates memory; judges whether shared content is valid (that is plan_resume's)
Rules    cache.exact-identity, blocks.stop-at-first-private, cache.first-wins
Next     headrace_engine.scheduler.plan
"""

from __future__ import annotations

from headrace_engine.cache.block import SequenceBlocks, as_bytes
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.state.sequence import Sequence


def admit_prompt(
    pool: LogicalBlockPool, holder: SequenceBlocks, sequence: Sequence, *, prefix_cache: bool
) -> None:
    """Gives the sequence blocks for every known token, shared where the content is known."""
    if prefix_cache:
        tokens = as_bytes(sequence.tokens[: sequence.length])
        match_prompt(pool, holder, tokens)
        index_missing_blocks(pool, holder, tokens)
    else:
        holder.chain = None
    create_missing_blocks(pool, holder, sequence.length)


def create_missing_blocks(pool: LogicalBlockPool, holder: SequenceBlocks, length: int) -> None:
    """Private blocks, without memory, until ``length`` positions have one."""
    while len(holder.blocks) * pool.block_tokens < length:
        pool.extend(holder)


def match_prompt(pool: LogicalBlockPool, holder: SequenceBlocks, tokens: bytes) -> None:
    """Shares the longest known run of full blocks. Their content need not be valid yet."""
    assert holder.chain is not None
    pool.share_run(holder, pool.trie.walk(holder.chain, tokens, 4 * pool.block_tokens))


def index_missing_blocks(pool: LogicalBlockPool, holder: SequenceBlocks, tokens: bytes) -> None:
    """New blocks for what was not found; full ones can be found by others from now on.

    After the first that cannot be indexed nothing further is: a later block under an earlier
    parent would be found at the wrong position.
    """
    size = 4 * pool.block_tokens
    for begin in range(len(holder.blocks) * size, len(tokens) - size + 1, size):
        pool.extend(holder)
        if not pool.index_next(holder, tokens[begin : begin + size]):
            return
