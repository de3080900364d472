"""LogicalBlockPool: counted references to blocks. At zero a block leaves the trie and is gone.

Owner    engine thread
Writes   LogicalBlock, SequenceBlocks.blocks
Never    allocates memory; awaits
Rules    blocks.counted, blocks.strong-parents, cache.unheld-by-age
Next     headrace_engine.cache.cache_pool
"""

from __future__ import annotations

from headrace_contracts.prefix_key import PrefixKey

from headrace_engine.cache.block import CacheBlock, LogicalBlock, SequenceBlocks
from headrace_engine.cache.cache_pool import CacheBlockPool
from headrace_engine.cache.trie import PrefixTrie
from headrace_engine.memory.objects import Allocation, ObjectType


class LogicalBlockPool:
    """Every LogicalBlock of one engine.

    Invariants
        alive == blocks with refs > 0, roots excluded
        a slot is listed  iff  it is allocated and its owner has no holder
    """

    __slots__ = ("alive", "block_tokens", "block_type", "named", "slots", "trie")

    def __init__(
        self, slots: CacheBlockPool, trie: PrefixTrie, block_type: ObjectType, block_tokens: int
    ) -> None:
        self.slots = slots
        self.trie = trie
        self.block_type = block_type
        self.block_tokens = block_tokens
        self.alive = 0
        self.named: list[tuple[int, int, PrefixKey]] | None = None
        """For the journal: (number, block index, key) of blocks shared, indexed, or refused by the
        trie since it was emptied. None: nobody wants to know."""

    # references of sequences

    def enter(self, number: int, root: LogicalBlock) -> SequenceBlocks:
        """An empty run of blocks under ``root``, which it keeps."""
        root.refs += 1
        return SequenceBlocks(number=number, root=root, chain=root)

    def extend(self, holder: SequenceBlocks) -> LogicalBlock:
        """Appends a new private block without memory."""
        size = self.block_tokens
        block = LogicalBlock(len(holder.blocks) * size, size)
        block.refs = 1
        block.holders[holder] = None
        block.slot = CacheBlock(self.block_type, block)
        self.alive += 1
        holder.blocks.append(block)
        return block

    def share(self, holder: SequenceBlocks, block: LogicalBlock) -> None:
        """Appends an indexed block that the trie found."""
        self.share_run(holder, [block])

    def share_run(self, holder: SequenceBlocks, run: list[LogicalBlock]) -> None:
        """Appends indexed blocks that the trie found, each the parent of the next."""
        chain, named, listed = holder.chain, self.named, self.slots.sorted
        for block in run:
            assert block.indexed
            assert block.parent is chain
            block.refs += 1
            holders = block.holders
            if not holders and block.slot is not None and block.slot.listed:
                listed.remove(block.slot)
            holders[holder] = None
            if named is not None and block.key is not None:
                named.append((holder.number, block.offset // self.block_tokens, block.key))
            chain = block
        holder.chain = chain
        holder.chained += len(run)
        holder.blocks += run

    def index_next(self, holder: SequenceBlocks, tokens: bytes) -> bool:
        """Makes the block after the chain discoverable. False: the chain ends here, for good."""
        assert holder.chain is not None
        block = holder.blocks[holder.chained]
        inserted = self.trie.insert(block, holder.chain, tokens)
        if self.named is not None:
            key = block.key if inserted else self.trie.key_after(holder.chain, tokens)
            assert key is not None
            self.named.append((holder.number, holder.chained, key))
        if not inserted:
            holder.chain = None
            return False
        holder.chain = block
        holder.chained += 1
        return True

    def truncate(self, holder: SequenceBlocks, count: int) -> None:
        """Drops the blocks from ``count`` on, tail first."""
        while len(holder.blocks) > count:
            block = holder.blocks.pop()
            del block.holders[holder]
            if not block.holders and block.allocated:
                assert block.slot is not None
                if block.indexed and block.valid:
                    self.slots.sorted.add(block.slot)
                else:
                    self.slots.objects.free(self.unpin(block))
            self._drop(block)
        if count < holder.chained:
            holder.chained = count
            holder.chain = holder.blocks[-1] if holder.blocks else holder.root

    def leave(self, holder: SequenceBlocks) -> None:
        """Drops every block and the root. Private content is freed, indexed content stays."""
        self.truncate(holder, 0)
        self._drop(holder.root)

    # references of memory

    def pin(self, block: LogicalBlock, allocation: Allocation) -> None:
        """Memory arrives behind a held block."""
        slot = block.slot
        assert slot is not None
        assert block.holders, "memory for a block that nobody holds"
        self.slots.attach(slot, allocation)
        block.refs += 1
        for holder in block.holders:
            holder.changed = True

    def unpin(self, block: LogicalBlock) -> Allocation:
        """Memory leaves the block, which is no longer valid. Its pin's reference is dropped too.

        A block that nobody holds may be recycled by this.
        """
        assert block.slot is not None
        allocation = self.slots.detach(block.slot)
        block.valid = False
        block.publisher = 0
        for holder in block.holders:
            holder.changed = True
        self._drop(block)
        return allocation

    def evict_all(self) -> int:
        """Takes the memory of every block that nobody holds. Returns how many."""
        slots = list(self.slots.sorted)
        for slot in slots:
            self.slots.objects.free(self.unpin(slot.owner))
        return len(slots)

    def invalidate(self, block: LogicalBlock) -> None:
        """Its content is not to be trusted. Memory stays with its holders, or is freed."""
        block.valid = False
        block.publisher = 0
        for holder in block.holders:
            holder.changed = True
        if block.slot is not None and block.slot.listed:
            self.slots.objects.free(self.unpin(block))

    def _drop(self, block: LogicalBlock) -> None:
        """One reference less; at zero the block is recycled, and so on up its parents."""
        node: LogicalBlock | None = block
        while node is not None:
            node.refs -= 1
            assert node.refs >= 0, "block dropped too often"
            if node.refs:
                return
            if node.capacity == 0:
                self.trie.drop_root(node)
                return
            assert not node.holders
            self.alive -= 1
            node = self.trie.erase(node) if node.indexed else None

    def audit(self, holders: list[SequenceBlocks]) -> None:
        """Asserts every invariant of blocks and slots. O(blocks)."""
        children: dict[int, int] = {}
        blocks: dict[int, LogicalBlock] = {id(b): b for b in self.trie.nodes()}
        for node in self.trie.nodes():
            assert node.parent is not None
            assert node.parent.capacity == 0 or node.parent.indexed
            assert node.offset == node.parent.end
            children[id(node.parent)] = children.get(id(node.parent), 0) + 1
        for holder in holders:
            for i, block in enumerate(holder.blocks):
                assert block.offset == i * self.block_tokens
                assert holder in block.holders
                assert (i < holder.chained) <= block.indexed
                blocks[id(block)] = block
        allocated = listed = 0
        for block in blocks.values():
            assert block.slot is not None
            assert block.slot.owner is block
            for holder in block.holders:
                assert holder.blocks[block.offset // self.block_tokens] is block
            refs = len(block.holders) + children.get(id(block), 0) + block.allocated
            assert refs == block.refs > 0, "reference count is wrong"
            assert block.allocated or not block.valid
            assert block.slot.listed == (block.allocated and not block.holders)
            assert not block.slot.listed or block.valid
            if block.slot.allocation is not None:
                allocated += 1
                assert self.slots.objects.is_live(block.slot.allocation)
            listed += block.slot.listed
        assert len(blocks) == self.alive, "blocks are lost"
        assert allocated == self.slots.allocated == self.slots.objects.live
        assert listed == len(self.slots.sorted)
        seen: set[int] = set()
        stamp = 0
        for slot in self.slots.sorted:
            assert slot.stamp > stamp, "not in order of stamps"
            stamp = slot.stamp
            seen.add(id(slot.owner))
            parent = slot.owner.parent
            assert parent is None or id(parent) not in seen, "a parent stands before its child"
