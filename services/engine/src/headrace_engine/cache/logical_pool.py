"""LogicalBlockPool: counted references to blocks. At zero a block leaves the trie and is gone.

Owner    engine thread
Writes   LogicalBlock, SequenceBlocks.blocks
Never    allocates memory; awaits
Rules    blocks.counted, blocks.held-in-runs, cache.unheld-by-age, states.with-their-block
Next     headrace_engine.cache.cache_pool
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from headrace_contracts.prefix_key import PrefixKey

from headrace_engine.cache.block import (
    NOBODY,
    UNHELD,
    CacheBlock,
    HeldRun,
    LogicalBlock,
    SequenceBlocks,
)
from headrace_engine.cache.cache_pool import CacheBlockPool
from headrace_engine.cache.trie import PrefixTrie
from headrace_engine.memory.objects import Allocation, ObjectType


class LogicalBlockPool:
    """Every LogicalBlock of one engine.

    Invariants
        alive == blocks with holders or refs > 0, roots and states excluded
        checkpoints == states that belong to a block
        a slot is listed  iff  it is allocated and its owner has no holder
    """

    __slots__ = ("alive", "block_tokens", "block_type", "checkpoints", "likened", "named", "recall",
                 "slots", "state_type", "trie")  # fmt: skip

    def __init__(
        self,
        slots: CacheBlockPool,
        trie: PrefixTrie,
        block_type: ObjectType,
        block_tokens: int,
        state_type: ObjectType | None = None,
    ) -> None:
        """``state_type`` is that of a recurrent state; None: the model has none."""
        self.slots = slots
        self.trie = trie
        self.block_type = block_type
        self.state_type = state_type
        self.block_tokens = block_tokens
        self.alive = 0
        self.checkpoints = 0
        self.named: list[tuple[int, int, PrefixKey]] | None = None
        """For the journal: (number, block index, key) of blocks shared, indexed, or refused by the
        trie since it was emptied. None: nobody wants to know."""
        self.likened: list[tuple[int, int, int]] | None = None
        """For the journal: (number, maker of what was found or 0, tokens in common) of every search
        for a sibling, since it was emptied. None: nobody wants to know."""
        self.recall: Callable[[int], tuple[int, int]] | None = None
        """In a replay: the recorded answer to the next search of a sequence, instead of searching."""

    # references of sequences

    def enter(self, number: int, root: LogicalBlock) -> SequenceBlocks:
        """An empty run of blocks under ``root``, which it keeps."""
        root.refs += 1
        holder = SequenceBlocks(number=number, root=root, chain=root)
        if self.state_type is not None:
            holder.frontier = state = LogicalBlock(0, 0, run=HeldRun({holder: None}, 0, 0))
            state.slot = CacheBlock(self.state_type, state)
        return holder

    def extend(self, holder: SequenceBlocks) -> LogicalBlock:
        """Appends a new private block without memory."""
        size = self.block_tokens
        blocks = holder.blocks
        index = len(blocks)
        if index and len((run := blocks[-1].run).holders) == 1:
            run.end, run.valid = index + 1, False
        else:
            run = HeldRun({holder: None}, index, index + 1)
        block = LogicalBlock(index * size, size, run=run, maker=holder.number)
        block.slot = CacheBlock(self.block_type, block)
        self.alive += 1
        blocks.append(block)
        return block

    def share(self, holder: SequenceBlocks, blocks: list[LogicalBlock]) -> None:
        """Begins with indexed blocks that the trie found, from a root on, each the parent of the next."""
        assert not holder.blocks, "shared behind other blocks"
        if not blocks:
            return
        assert blocks[0].parent is holder.root
        at, count = 0, len(blocks)
        while at < count and (run := blocks[at].run) is not UNHELD:
            end = min(run.end, count)
            while blocks[end - 1].run is not run:  # parted from it on the way
                end -= 1
            if end < run.end:
                self._split(run, end)
                run = blocks[at].run
            run.holders[holder] = None
            at = end
        if at < count:  # nobody holds these: whoever held one would hold those before it
            run = HeldRun({holder: None}, at, count)
            listed = self.slots.sorted
            for block in blocks[at:]:
                block.run = run
                if (slot := block.slot) is not None and slot.listed:
                    listed.remove(slot)
        if self.named is not None:
            for index, block in enumerate(blocks):
                assert block.key is not None
                self.named.append((holder.number, index, block.key))
        holder.chain = blocks[-1]
        holder.chained = count
        holder.blocks += blocks

    def _split(self, run: HeldRun, at: int) -> None:
        """Two runs of one, before and behind the blocks' index ``at``. O(the shorter one)."""
        (blocks, *_) = (holder.blocks for holder in run.holders)
        other = HeldRun(run.holders.copy(), run.first, at, run.valid)
        if at - run.first <= run.end - at:
            run.first = at
        else:
            other.first, other.end, run.end = at, run.end, at
        run.addresses = None
        for block in blocks[other.first : other.end]:
            block.run = other

    def _merge(self, run: HeldRun) -> None:
        """One run of this and the next, if the same sequences hold both. O(the shorter one)."""
        blocks = next(iter(run.holders)).blocks
        if run.end == len(blocks):
            return
        behind = blocks[run.end].run
        if len(behind.holders) < len(run.holders):
            return
        if behind.end - behind.first < run.end - run.first:
            run, behind = behind, run
        for block in blocks[run.first : run.end]:
            block.run = behind
        behind.first, behind.end = min(run.first, behind.first), max(run.end, behind.end)
        behind.valid &= run.valid
        behind.addresses = None

    def index_next(
        self, holder: SequenceBlocks, tokens: bytes, fingerprints: tuple[bytes, ...] = ()
    ) -> bool:
        """Makes the block after the chain discoverable. False: the chain ends here, for good."""
        assert holder.chain is not None
        block = holder.blocks[holder.chained]
        if block.offered:
            self.withdraw(block)
        inserted = self.trie.insert(block, holder.chain, tokens, fingerprints)
        if self.named is not None:
            key = block.key if inserted else self.trie.key_after(holder.chain, tokens, fingerprints)
            assert key is not None
            self.named.append((holder.number, holder.chained, key))
        if not inserted:
            holder.chain = None
            return False
        holder.chain = block
        holder.chained += 1
        return True

    # partial siblings

    def closest(
        self,
        holder: SequenceBlocks,
        parent: LogicalBlock,
        tokens: bytes,
        fingerprints: tuple[bytes, ...] = (),
        besides: LogicalBlock | None = None,
        prefers: Callable[[LogicalBlock], bool] = attrgetter("valid"),
    ) -> tuple[LogicalBlock, int] | None:
        """As ``PrefixTrie.closest``, for this sequence; noted, or in a replay remembered."""
        children = parent.children
        if children is None:
            if parent.child is None or parent.child is besides:
                return None
        elif len(children) == 1 and [besides] in children.values():
            return None
        if self.recall is not None:
            maker, common = self.recall(holder.number)
            alike = [block for block in parent.followers if block.maker == maker]
            found = (alike[0], common) if maker else None
        else:
            found = self.trie.closest(parent, tokens, fingerprints, besides, prefers)
        if self.likened is not None:
            block, common = (None, 0) if found is None else found
            self.likened.append((holder.number, 0 if block is None else block.maker, common))
        return found

    def offer(
        self, holder: SequenceBlocks, tokens: bytes, fingerprints: tuple[bytes, ...] = ()
    ) -> None:
        """Lets others copy the beginning of the block after the chain."""
        assert holder.chain is not None
        self.trie.offer(holder.blocks[holder.chained], holder.chain, tokens, fingerprints)

    def withdraw(self, block: LogicalBlock) -> None:
        """A held block can no longer be found by its beginning."""
        self.trie.erase(block).refs -= 1  # not the last one: whoever holds the block holds it too

    # recurrent states

    def make_checkpoint(self, position: int) -> LogicalBlock:
        """A state without memory, which nobody refers to yet."""
        assert self.state_type is not None
        state = LogicalBlock(position, 0)
        state.slot = CacheBlock(self.state_type, state)
        return state

    def attach_state(self, block: LogicalBlock, state: LogicalBlock) -> None:
        """A state with memory becomes a checkpoint of the block, and may be evicted from now on."""
        assert block.offset < state.offset <= block.end
        assert block.valid
        assert state.slot is not None
        state.parent = block
        state.valid = True
        block.refs += 1
        block.states = (*block.states, state)
        self.checkpoints += 1
        self.slots.sorted.add(state.slot)
        for holder in block.run.holders:
            holder.changed = True

    def keep_frontier(self, holder: SequenceBlocks, block: LogicalBlock) -> None:
        """The frontier of a sequence that leaves becomes a checkpoint of its last block."""
        state = holder.frontier
        assert state is not None
        assert state.allocated
        holder.frontier = None
        state.run = UNHELD
        self.attach_state(block, state)

    def touch(self, block: LogicalBlock) -> None:
        """A block or checkpoint was copied from: if nobody holds it, that was its last use."""
        slot = block.slot
        assert slot is not None
        if slot.listed:
            self.slots.sorted.remove(slot)
            self.slots.sorted.add(slot)

    def drop_states(self, block: LogicalBlock) -> None:
        """Frees every checkpoint of the block."""
        for state in block.states:
            self.slots.objects.free(self.unpin(state))

    def leave(self, holder: SequenceBlocks) -> None:
        """Drops every block and the root. Private content is freed, indexed content stays."""
        state = holder.frontier
        if state is not None:
            holder.frontier = None
            state.run = UNHELD
            if state.allocated:
                self.slots.objects.free(self.unpin(state))
            else:
                self._recycle(state)
        blocks, holder.blocks = holder.blocks, []
        holder.chain, holder.chained = holder.root, 0
        at = len(blocks)
        while at and len((run := blocks[at - 1].run).holders) == 1:
            self._abandon(blocks[run.first : at])
            at = run.first
        if at:
            last = blocks[at - 1].run
            while at:
                run = blocks[at - 1].run
                del run.holders[holder]
                at = run.first
            self._merge(last)
        self._drop(holder.root)

    def _abandon(self, blocks: list[LogicalBlock]) -> None:
        """Nobody holds these any more, each the parent of the next: tail first they are let go."""
        listed = self.slots.sorted
        idle: list[CacheBlock] = []
        while blocks:
            block = blocks.pop()
            block.run = UNHELD
            if (slot := block.slot) is not None and slot.allocation is not None:
                if block.valid and (block.indexed or block.offered):
                    if block.states:
                        listed.add_all(idle)
                        idle.clear()
                        for state in block.states:
                            self.touch(state)
                    idle.append(slot)
                else:
                    self.slots.objects.free(self.unpin(block))
            else:
                self._recycle(block)
        listed.add_all(idle)

    # references of memory

    def pin(self, block: LogicalBlock, allocation: Allocation) -> None:
        """Memory arrives behind a held block, or behind a state that is being published."""
        slot, run = block.slot, block.run
        assert slot is not None
        assert run is not UNHELD or not block.capacity, "memory for a block that nobody holds"
        self.slots.attach(slot, allocation)
        block.refs += 1
        run.addresses = None
        for holder in run.holders:
            holder.changed = True

    def unpin(self, block: LogicalBlock) -> Allocation:
        """Memory leaves the block, which is no longer valid. Its pin's reference is dropped too.

        A block that nobody holds may be recycled by this.
        """
        assert block.slot is not None
        if block.states:
            self.drop_states(block)
        allocation = self.slots.detach(block.slot)
        block.run.addresses = None
        self._distrust(block)
        self._drop(block)
        return allocation

    def evict_all(self) -> int:
        """Takes the memory of every block that nobody holds. Returns how many."""
        slots = list(self.slots.sorted)
        for slot in slots:
            if slot.listed:  # not gone with its block
                self.slots.objects.free(self.unpin(slot.owner))
        return len(slots)

    def invalidate(self, block: LogicalBlock) -> None:
        """Its content is not to be trusted. Memory stays with its holders, or is freed."""
        if block.states:
            self.drop_states(block)
        self._distrust(block)
        if block.slot is not None and block.slot.listed:
            self.slots.objects.free(self.unpin(block))

    def _distrust(self, block: LogicalBlock) -> None:
        block.valid = False
        block.publisher = block.written = 0
        block.origins = NOBODY
        if self.trie.changes is not None:
            self.trie.changes.touched[block] = None
        run = block.run
        run.valid = False
        for holder in run.holders:
            holder.changed = True

    def _drop(self, block: LogicalBlock) -> None:
        """One reference less."""
        block.refs -= 1
        assert block.refs >= 0, "block dropped too often"
        self._recycle(block)

    def _recycle(self, block: LogicalBlock) -> None:
        """If nothing keeps the block it is gone, and so on up its parents."""
        node: LogicalBlock | None = block
        while node is not None and not node.refs and node.run is UNHELD:
            if node.slot is None:
                self.trie.drop_root(node)
                return
            if node.capacity:
                self.alive -= 1
                node = self.trie.erase(node) if node.indexed or node.offered else None
            else:
                node = self._detach_state(node)
            if node is not None:
                node.refs -= 1
                assert node.refs >= 0, "block dropped too often"

    def _detach_state(self, state: LogicalBlock) -> LogicalBlock | None:
        """A state is gone: the block it was a checkpoint of loses a reference."""
        block = state.parent
        if block is not None:
            state.parent = None
            self.checkpoints -= 1
            block.states = tuple(other for other in block.states if other is not state)
            for holder in block.run.holders:
                holder.changed = True
        return block

    def audit(self, holders: list[SequenceBlocks]) -> None:
        """Asserts every invariant of blocks and slots. O(blocks)."""
        nodes, offers = self.trie.nodes(), list(self.trie.offered)
        blocks: dict[int, LogicalBlock] = {id(b): b for b in (*nodes, *offers)}
        for node in (*nodes, *offers):
            assert node.parent is not None
            assert node.parent.capacity == 0 or node.parent.indexed
            assert node.offset == node.parent.end
            alike = node.parent.children
            assert node.parent.child is node or (alike and node in alike[node.content[:4]])
            assert node.indexed == (not node.offered)
            assert 0 <= node.written <= node.offered < self.block_tokens
        for holder in holders:
            for i, block in enumerate(holder.blocks):
                assert block.offset == i * self.block_tokens
                assert holder in block.holders
                assert block.run.first <= i < block.run.end
                assert (i < holder.chained) <= block.indexed
                blocks[id(block)] = block
            _audit_runs(holder)
        states = [b.frontier for b in holders if b.frontier is not None]
        assert all(set(state.holders) == {h} for h in holders if (state := h.frontier) is not None)
        checkpoints = [state for block in blocks.values() for state in block.states]
        assert len(checkpoints) == self.checkpoints, "checkpoints are lost"
        for state in checkpoints:
            assert state.parent is not None
            assert state.parent.offset < state.offset <= state.parent.end
            # With a private block it serves the block's own sequence, which knows how far it is valid.
            found = state.parent.indexed or state.parent.offered
            assert not found or state.parent.extent >= state.offset - state.parent.offset
            assert state.parent.valid
            assert not state.holders
        allocated = 0
        for block in blocks.values():
            children = block.followers
            assert all(child.parent is block for child in children)
            assert not block.offered or (not children and len(block.holders) <= 1)
            for holder in block.holders:
                assert holder.blocks[block.offset // self.block_tokens] is block
            refs = len(children) + len(block.states) + block.allocated
            assert refs == block.refs, "reference count is wrong"
            assert refs or block.holders, "nothing keeps it"
            kept = () if not block.indexed or block.parent is None else block.parent.holders
            assert not kept or block.holders.keys() <= kept.keys(), "held without its parent"
        for state in (*states, *checkpoints):
            assert state.refs == state.allocated
            assert state.refs or state.holders
        for block in (*blocks.values(), *states, *checkpoints):
            assert block.slot is not None
            assert block.slot.owner is block
            assert block.allocated or not block.valid
            assert block.slot.listed == (block.allocated and not block.holders)
            assert not block.slot.listed or block.valid
            if block.slot.allocation is not None:
                allocated += 1
                assert self.slots.objects.is_live(block.slot.allocation)
        assert len(blocks) == self.alive, "blocks are lost"
        assert allocated == self.slots.allocated == self.slots.objects.live
        seen: set[int] = set()
        stamp = listed = 0
        for slot in self.slots.sorted:
            assert slot.stamp > stamp, "not in order of stamps"
            stamp = slot.stamp
            listed += 1
            seen.add(id(slot.owner))
            parent = slot.owner.parent
            assert parent is None or id(parent) not in seen, "a parent stands before its child"
        assert listed == len(self.slots.sorted)
        assert listed == sum(
            b.slot is not None and b.slot.listed for b in (*blocks.values(), *checkpoints)
        )


def _audit_runs(holder: SequenceBlocks) -> None:
    before: HeldRun | None = None
    at = 0
    while at < len(holder.blocks):
        run = holder.blocks[at].run
        blocks = holder.blocks[run.first : run.end]
        assert run.first == at
        assert run.end == at + len(blocks)
        assert all(block.run is run for block in blocks)
        assert before is None or len(run.holders) < len(before.holders), "two runs could be one"
        assert before is None or list(run.holders) == [
            h for h in before.holders if h in run.holders
        ]
        assert not run.valid or all(block.valid for block in blocks)
        with_memory = [s.allocation for b in blocks if (s := b.slot) is not None and s.allocation]
        addresses = [address for allocation in with_memory for address in allocation.addresses]
        assert run.addresses is None or run.addresses.tolist() == addresses
        before, at = run, run.end
    assert not UNHELD.holders
