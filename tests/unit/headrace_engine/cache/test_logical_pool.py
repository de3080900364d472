"""LogicalBlockPool: counted references; at zero a block is gone from everywhere."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from headrace_contracts.prefix_key import fold
from headrace_engine.cache.block import SequenceBlocks
from headrace_engine.cache.trie import Fold
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from support.cache import BLOCK, CacheRig, content

A, B, C = content(1, 2, 3, 4), content(5, 6, 7, 8), content(9, 9, 9, 9)


@pytest.mark.rule("blocks.counted")
def test_a_block_stays_as_long_as_somebody_or_its_memory_refers_to_it(rig: CacheRig) -> None:
    first, second = rig.enter(), rig.enter()
    (block,) = rig.fill(first, A)
    rig.pool.share(second, [block])
    assert (block.refs, len(block.holders)) == (1, 2)
    rig.leave(first)
    assert (block.refs, len(block.holders)) == (1, 1)
    rig.leave(second)
    assert (block.refs, len(block.holders)) == (1, 0)
    assert block.slot is not None
    assert block.slot.listed
    assert rig.pool.evict_all() == 1
    assert rig.pool.alive == 0
    rig.assert_empty()


def test_private_content_is_freed_with_its_sequence(rig: CacheRig) -> None:
    holder = rig.enter()
    block = rig.pool.extend(holder)
    rig.give_memory(block)
    rig.leave(holder)
    assert rig.objects.live == 0
    rig.assert_empty()


def test_indexed_content_that_is_not_valid_is_freed_too(rig: CacheRig) -> None:
    holder = rig.enter()
    block = rig.pool.extend(holder)
    rig.give_memory(block, valid=False)
    rig.pool.index_next(holder, A)
    rig.leave(holder)
    assert rig.objects.live == 0
    rig.assert_empty()


@pytest.mark.rule("cache.unheld-by-age")
def test_the_tail_of_what_was_released_is_the_first_to_be_taken(rig: CacheRig) -> None:
    holder = rig.enter()
    blocks = rig.fill(holder, A, B, C)
    rig.leave(holder)
    assert [slot.owner for slot in rig.pool.slots.sorted] == blocks[::-1]


def test_sharing_takes_a_block_out_of_the_line_for_eviction(rig: CacheRig) -> None:
    first = rig.enter()
    (block,) = rig.fill(first, A)
    rig.leave(first)
    second = rig.enter()
    rig.pool.share(second, [block])
    assert len(rig.pool.slots.sorted) == 0
    assert rig.pool.evict_all() == 0
    rig.leave(second)
    rig.assert_empty()


@pytest.mark.rule("blocks.stop-at-first-private")
def test_after_a_block_that_could_not_be_indexed_nothing_further_is(rig: CacheRig) -> None:
    first, second = rig.enter(), rig.enter()
    rig.fill(first, A)
    rig.fill(second, A)
    assert second.chain is None
    assert second.chained == 0
    rig.fill(second, B)
    assert len(rig.trie) == 1
    with pytest.raises(AssertionError):
        rig.pool.index_next(second, B)
    rig.leave(first)
    rig.leave(second)
    rig.assert_empty()


def runs(holder: SequenceBlocks) -> list[tuple[int, int, list[int]]]:
    """Of each run of blocks: first, end, and who holds it."""
    parts = dict.fromkeys(block.run for block in holder.blocks)
    return [(run.first, run.end, [other.number for other in run.holders]) for run in parts]


@pytest.mark.rule("blocks.held-in-runs")
def test_who_holds_a_run_of_blocks_stands_once_and_again_when_they_part(rig: CacheRig) -> None:
    first, second, third = (rig.enter() for _ in range(3))
    blocks = rig.fill(first, A, B, C, A, B)
    assert runs(first) == [(0, 5, [1])]
    rig.pool.share(second, blocks[:4])
    assert runs(first) == [(0, 4, [1, 2]), (4, 5, [1])]
    (own,) = rig.fill(second, A)
    assert runs(second) == [(0, 4, [1, 2]), (4, 5, [2])]
    rig.pool.share(third, blocks[:1])
    assert runs(first) == [(0, 1, [1, 2, 3]), (1, 4, [1, 2]), (4, 5, [1])]
    rig.audit()
    rig.leave(third)
    assert runs(second) == [(0, 4, [1, 2]), (4, 5, [2])], "nobody tells the first block apart now"
    rig.leave(first)
    assert runs(second) == [(0, 5, [2])]
    rig.leave(second)
    fourth = rig.enter()
    rig.pool.share(fourth, [*blocks[:4], own])
    assert runs(fourth) == [(0, 5, [4])]
    rig.leave(fourth)
    assert [block.run.holders for block in blocks] == [{}] * 5
    rig.assert_empty()


@pytest.mark.rule("blocks.held-in-runs")
def test_what_is_shared_may_part_from_a_run_and_go_on_where_nobody_is(rig: CacheRig) -> None:
    first, second = rig.enter(), rig.enter()
    blocks = rig.fill(first, A, B, C)
    rig.pool.share(second, blocks[:1])
    others = rig.fill(second, C, B)
    rig.leave(second)
    assert runs(first) == [(0, 3, [1])]
    third = rig.enter()
    rig.pool.share(third, [blocks[0], *others])
    assert runs(third) == [(0, 1, [1, 3]), (1, 3, [3])]
    assert runs(first) == [(0, 1, [1, 3]), (1, 3, [1])]
    rig.audit()
    rig.leave(first)
    assert runs(third) == [(0, 3, [3])]
    rig.leave(third)
    rig.assert_empty()


def test_losing_memory_tells_every_holder(rig: CacheRig) -> None:
    first, second = rig.enter(), rig.enter()
    (block,) = rig.fill(first, A)
    rig.pool.share(second, [block])
    first.changed = second.changed = False
    rig.objects.free(rig.pool.unpin(block))
    assert first.changed
    assert second.changed
    assert not block.valid
    assert block.indexed, "it can still be found; it is only not valid"
    rig.leave(first)
    rig.leave(second)
    rig.assert_empty()


def test_invalid_content_that_nobody_holds_is_freed(rig: CacheRig) -> None:
    holder = rig.enter()
    blocks = rig.fill(holder, A, B)
    rig.leave(holder)
    rig.pool.invalidate(blocks[1])
    assert rig.objects.live == 1
    rig.audit()
    rig.assert_empty()


def test_audit_notices_a_lost_reference(rig: CacheRig) -> None:
    holder = rig.enter()
    (block,) = rig.fill(holder, A)
    block.refs += 1
    with pytest.raises(AssertionError, match="reference count"):
        rig.audit()


def collide(parent: Any, tokens: bytes, fingerprints: Any) -> Any:
    return b"\0" * 16


class PoolMachine(RuleBasedStateMachine):
    """Sequences come, share, grow, lose memory and leave. The docstrings' invariants hold."""

    fold: Any

    def __init__(self) -> None:
        super().__init__()
        self.rig = CacheRig(blocks=6, fold=type(self).fold)
        self.truth: dict[int, list[bytes]] = {}
        """By sequence, the content of its blocks."""

    def pick(self, data: st.DataObject) -> SequenceBlocks | None:
        if not self.rig.holders:
            return None
        return data.draw(st.sampled_from(self.rig.holders))

    @rule(runs=st.lists(st.sampled_from([A, B, C]), max_size=4), tenant=st.sampled_from("ab"))
    def enter(self, runs: list[bytes], tenant: str) -> None:
        holder = self.rig.enter(tenant)
        self.truth[holder.number] = []
        self.rig.pool.share(holder, self.rig.trie.walk(holder.root, b"".join(runs), 4 * BLOCK))
        self.truth[holder.number] += runs[: len(holder.blocks)]
        self.contents_agree(holder)

    def contents_agree(self, holder: SequenceBlocks) -> None:
        for block, tokens in zip(holder.blocks, self.truth[holder.number], strict=False):
            assert not block.indexed or block.tokens == tokens, "a false share"

    @rule(data=st.data(), tokens=st.sampled_from([A, B, C]), index=st.booleans())
    def grow(self, data: st.DataObject, tokens: bytes, index: bool) -> None:
        holder = self.pick(data)
        if holder is None or not self.rig.objects.pages.free_pages:
            return
        assert self.rig.give_memory(self.rig.pool.extend(holder))
        self.truth[holder.number].append(tokens)
        if index and holder.chain is not None and holder.chained == len(holder.blocks) - 1:
            self.rig.pool.index_next(holder, tokens)
        else:
            holder.chain = None

    @rule(data=st.data())
    def lose_memory(self, data: st.DataObject) -> None:
        holder = self.pick(data)
        if holder is not None and holder.blocks:
            block = data.draw(st.sampled_from(holder.blocks))
            if block.allocated:
                self.rig.objects.free(self.rig.pool.unpin(block))

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        holder = self.pick(data)
        if holder is not None:
            self.rig.leave(holder)

    @rule()
    def evict_one(self) -> None:
        oldest = next(iter(self.rig.pool.slots.sorted), None)
        if oldest is not None:
            self.rig.objects.free(self.rig.pool.unpin(oldest.owner))

    @invariant()
    def holds(self) -> None:
        self.rig.audit()
        for holder in self.rig.holders:
            self.contents_agree(holder)

    def teardown(self) -> None:
        for holder in list(self.rig.holders):
            self.rig.leave(holder)
        self.rig.assert_empty()


@pytest.mark.rule("blocks.counted")
@pytest.mark.rule("cache.exact-identity")
@pytest.mark.parametrize("colliding", [False, True])
def test_random_use_keeps_every_invariant(colliding: bool) -> None:
    def collide(*_: Any) -> Any:
        return b"\0" * 16

    folds: dict[bool, Fold] = {True: collide, False: fold}

    def chosen(parent: Any, tokens: bytes, fingerprints: Any) -> Any:
        return folds[colliding](parent, tokens, fingerprints)

    machine = type("Machine", (PoolMachine,), {"fold": staticmethod(chosen)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


def test_blocks_know_their_positions(rig: CacheRig) -> None:
    holder = rig.enter()
    blocks = rig.fill(holder, A, B)
    assert [(b.offset, b.end) for b in blocks] == [(0, BLOCK), (BLOCK, 2 * BLOCK)]
