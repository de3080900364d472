"""Blocks, slots, trie and allocator without a scheduler."""

from __future__ import annotations

from headrace_contracts.prefix_key import fold
from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.cache.cache_pool import CacheBlockPool
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.cache.registry import CacheRegistry
from headrace_engine.cache.trie import Fold, PrefixTrie, RootIdentity
from headrace_engine.memory.objects import ObjectAllocator

BLOCK = 4
"""Tokens of a block."""


def identity(tenant: str = "", salt: bytes = b"", adapter: str = "") -> RootIdentity:
    return RootIdentity("w", "f32", tenant, adapter, salt)


def content(*tokens: int) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


class CacheRig:
    """Sequences that do by hand what the scheduler does."""

    def __init__(self, blocks: int = 8, fold: Fold = fold) -> None:
        self.objects = ObjectAllocator(region_bytes=blocks * 64, page_bytes=64)
        registry = CacheRegistry()
        registry.add_prefix(64)
        layout = registry.close(self.objects)
        self.trie = PrefixTrie(fold)
        self.pool = LogicalBlockPool(CacheBlockPool(self.objects), self.trie, layout.prefix, BLOCK)
        self.holders: list[SequenceBlocks] = []
        self._numbers = 0

    def enter(self, tenant: str = "") -> SequenceBlocks:
        self._numbers += 1
        holder = self.pool.enter(self._numbers, self.trie.root(identity(tenant)))
        self.holders.append(holder)
        return holder

    def leave(self, holder: SequenceBlocks) -> None:
        self.holders.remove(holder)
        self.pool.leave(holder)

    def give_memory(self, block: LogicalBlock, *, valid: bool = True) -> bool:
        """Memory for a held block, if there is any; its content counts as written."""
        allocation = self.objects.alloc(self.pool.block_type)
        if allocation is None:
            return False
        self.pool.pin(block, allocation)
        block.valid = valid
        return True

    def fill(self, holder: SequenceBlocks, *runs: bytes) -> list[LogicalBlock]:
        """New valid blocks with this content, indexed where possible."""
        made: list[LogicalBlock] = []
        for tokens in runs:
            block = self.pool.extend(holder)
            assert self.give_memory(block)
            if holder.chain is not None:
                self.pool.index_next(holder, tokens)
            made.append(block)
        return made

    def audit(self) -> None:
        self.pool.audit(self.holders)
        self.objects.audit()

    def assert_empty(self) -> None:
        """After every sequence has left and the cache is gone, nothing is."""
        assert not self.holders
        self.pool.evict_all()
        self.audit()
        assert self.pool.alive == 0
        assert len(self.trie) == self.trie.roots == 0
        assert self.objects.pages.coalesced()
