"""Grants: memory in order of rank, all or nothing, and a trial that leaves no trace."""

from __future__ import annotations

from math import inf

import pytest
from headrace_engine.cache.block import Rank, SequenceBlocks
from headrace_engine.scheduler.grant import Claimant, Claimants, Grants
from headrace_engine.scheduler.replay import replay_memory
from support.cache import CacheRig, content

A, B, C = content(1, 2, 3, 4), content(5, 6, 7, 8), content(9, 9, 9, 9)


def claimant(holder: SequenceBlocks, *, runs: bool = True, tenant: str = "") -> Claimant:
    rank: Rank = (1, 0, inf, holder.number)
    return Claimant(holder.number, rank, holder, tenant, runs)


def grants(rig: CacheRig, *, waiting: tuple[SequenceBlocks, ...] = ()) -> Grants:
    return Grants(
        rig.pool, lambda: Claimants(claimant(h, runs=h not in waiting) for h in rig.holders)
    )


def test_free_memory_is_taken_first() -> None:
    rig = CacheRig(blocks=3)
    first = rig.enter()
    rig.fill(first, A)
    taker = rig.enter()
    block = rig.pool.extend(taker)
    given = grants(rig)
    assert given.take(claimant(taker), block)
    assert not given.lost
    assert not block.allocated, "nothing is changed before the replay"
    assert replay_memory(given, rig.pool) == 0
    assert block.allocated
    rig.audit()


@pytest.mark.rule("cache.unheld-by-age")
def test_then_what_nobody_holds_oldest_first() -> None:
    rig = CacheRig(blocks=3)
    old, young = rig.enter(), rig.enter()
    (old_block,) = rig.fill(old, A)
    (young_block,) = rig.fill(young, B)
    rig.leave(old)
    rig.leave(young)
    taker = rig.enter()
    given = grants(rig)
    for _ in range(2):
        assert given.take(claimant(taker), rig.pool.extend(taker))
    assert given.lost == {old_block}
    assert replay_memory(given, rig.pool) == 1
    assert young_block.valid
    assert not old_block.indexed, "what lost its memory and has no holder is gone from the trie"
    rig.audit()


@pytest.mark.rule("sched.memory-by-order")
def test_then_from_the_tail_of_the_last_in_rank_and_never_from_who_goes_first() -> None:
    rig = CacheRig(blocks=4)
    first, second, third = rig.enter(), rig.enter(), rig.enter()
    rig.fill(first, A)
    rig.fill(second, B)
    lost = rig.fill(third, C, A)
    block = rig.pool.extend(second)
    given = grants(rig)
    assert given.take(claimant(second), block)
    assert given.lost == {lost[1]}
    assert list(given.paused) == [third.number]
    assert given.take(claimant(second), rig.pool.extend(second))
    assert not given.take(claimant(second), rig.pool.extend(second)), "first keeps its block"
    assert replay_memory(given, rig.pool) == 2
    assert all(b.allocated for b in first.blocks)
    assert not any(b.allocated for b in third.blocks)
    rig.audit()


def test_a_block_shared_with_one_that_goes_first_is_not_taken() -> None:
    rig = CacheRig(blocks=2)
    first, taker, last = rig.enter(), rig.enter(), rig.enter()
    (shared,) = rig.fill(first, A)
    rig.pool.share(last, [shared])
    (own,) = rig.fill(last, B)
    given = grants(rig)
    assert given.take(claimant(taker), rig.pool.extend(taker))
    assert given.lost == {own}
    assert not given.take(claimant(taker), rig.pool.extend(taker))


def test_what_an_ended_sequence_holds_is_not_taken_but_awaited() -> None:
    rig = CacheRig(blocks=1)
    taker, ended = rig.enter(), rig.enter()
    rig.fill(ended, A)
    ended.eligible = False
    given = Grants(rig.pool, lambda: Claimants([claimant(taker)]))
    assert not given.take(claimant(taker), rig.pool.extend(taker))


@pytest.mark.rule("sched.all-or-nothing")
@pytest.mark.rule("sched.trial-equals-outcome")
def test_what_cannot_be_given_whole_is_not_given_at_all() -> None:
    rig = CacheRig(blocks=5)
    first, taker, last = rig.enter(), rig.enter(), rig.enter()
    rig.fill(first, A)
    rig.fill(last, B, C)
    gone = rig.enter()
    rig.fill(gone, content(7, 7, 7, 7))
    rig.leave(gone)
    blocks = [rig.pool.extend(taker) for _ in range(5)]
    before = (rig.objects.pages.runs(), rig.objects.live)
    given = grants(rig, waiting=(taker, last))
    assert given.take_all(claimant(taker, runs=False), blocks) == 1, "short of one block"
    assert (rig.objects.pages.runs(), rig.objects.live) == before
    assert not given.ops
    assert not given.lost
    assert not given.granted
    assert not given.paused
    assert given.take_all(claimant(taker, runs=False), blocks[:4]) == 0
    assert replay_memory(given, rig.pool) == 3
    rig.audit()


def test_a_block_that_two_want_is_given_once() -> None:
    rig = CacheRig(blocks=2)
    first, second = rig.enter(), rig.enter()
    block = rig.pool.extend(first)
    rig.pool.index_next(first, A)
    rig.pool.share(second, [block])
    given = grants(rig)
    assert given.take_all(claimant(first), [block]) == 0
    assert given.take_all(claimant(second), [block]) == 0
    assert len(given.ops) == 1


def test_memory_may_be_taken_from_one_that_got_it_in_the_same_pass() -> None:
    rig = CacheRig(blocks=2)
    first, last = rig.enter(), rig.enter()
    granted = rig.pool.extend(last)
    given = grants(rig)
    assert given.take(claimant(last), granted)
    for _ in range(2):
        assert given.take(claimant(first), rig.pool.extend(first))
    assert granted not in given.granted
    assert list(given.paused) == [last.number]
    replay_memory(given, rig.pool)
    assert not granted.allocated
    rig.audit()


@pytest.mark.rule("sched.one-producer")
def test_a_block_has_one_producer_in_a_pass() -> None:
    rig = CacheRig()
    first, second = rig.enter(), rig.enter()
    rig.fill(first, A, B)
    rig.pool.share(second, first.blocks[:2])
    given = grants(rig)
    given.set_producers(first, 0, 4)
    assert given.check_producers(second, 0, 4) is None, "what is valid is only read"
    first.blocks[0].valid = False
    given.set_producers(first, 0, 4)
    assert given.check_producers(first, 0, 8) is None
    assert given.check_producers(second, 0, 4) == first.number
    assert given.check_producers(second, 3, 5) == first.number
    assert given.check_producers(second, 4, 8) is None
