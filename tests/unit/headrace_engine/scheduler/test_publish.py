"""Publication: complete blocks can be found; poisoned ones and what was made of them cannot."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.scheduler.publish import (
    adopt,
    invalidate_published,
    keep_tail,
    mark_produced,
    publish_complete,
)
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence
from support.cache import CacheRig, content
from support.engine import Rig

A, B, C = content(1, 2, 3, 4), content(5, 6, 7, 8), content(9, 9, 9, 9)


def sequence(tokens: list[int]) -> Sequence:
    array = np.array(tokens, np.int32)
    request = Request("r", RequestHandle(1), array, Sampling(max_new_tokens=1))
    return Sequence(request, 0, 1, array, len(array), len(array), 99, "", 0.0)


def test_a_block_is_indexed_once_its_tokens_are_known_and_its_kv_is_written() -> None:
    rig = CacheRig()
    holder = rig.enter()
    for _ in range(2):
        rig.give_memory(rig.pool.extend(holder))
    publish_complete(rig.pool, holder, sequence([1, 2, 3, 4, 5, 6, 7]), written=3)
    assert len(rig.trie) == 0
    publish_complete(rig.pool, holder, sequence([1, 2, 3, 4, 5, 6, 7]), written=8)
    assert len(rig.trie) == 1
    publish_complete(rig.pool, holder, sequence([1, 2, 3, 4, 5, 6, 7, 8]), written=8)
    assert [b.tokens for b in holder.blocks] == [A, B]


def test_a_block_whose_content_is_not_valid_is_not_published() -> None:
    rig = CacheRig()
    holder = rig.enter()
    rig.give_memory(rig.pool.extend(holder), valid=False)
    publish_complete(rig.pool, holder, sequence([1, 2, 3, 4]), written=4)
    assert len(rig.trie) == 0


def test_an_indexed_block_becomes_valid_only_when_it_is_covered_fully() -> None:
    rig = CacheRig()
    holder = rig.enter()
    for tokens in (A, B):
        block = rig.pool.extend(holder)
        rig.give_memory(block, valid=False)
        rig.pool.index_next(holder, tokens)
    private = rig.pool.extend(holder)
    rig.give_memory(private, valid=False)
    mark_produced(holder, 0, 6, 4)
    assert [b.valid for b in holder.blocks] == [True, False, False]
    assert holder.blocks[0].publisher == holder.number
    mark_produced(holder, 4, 10, 4)
    assert [b.valid for b in holder.blocks] == [True, True, True]


@pytest.mark.rule("siblings.kept")
@pytest.mark.parametrize("written", [[1, 3], [3, 1], [1, 1, 1, 1, 1, 3], [1, 1]])
def test_a_last_block_goes_where_any_other_has_all_of_it(written: list[int]) -> None:
    rig = CacheRig()
    holder = rig.enter()
    for tokens in (*written, 3):
        holder = rig.enter()
        block = rig.pool.extend(holder)
        rig.give_memory(block)
        rig.pool.offer(holder, content(1, 2, 3))
        block.written = tokens
    own = holder.blocks[0]
    keep_tail(rig.pool, holder, sequence([1, 2, 3]), 3, generated=False)
    assert own.offered == (0 if 3 in written else 3)


@pytest.mark.rule("siblings.kept")
def test_a_last_block_stays_beside_one_that_only_begins_as_it_does() -> None:
    rig = CacheRig()
    holder = rig.enter()
    for tokens in ((1, 9, 9), (1, 2, 3)):
        holder = rig.enter()
        block = rig.pool.extend(holder)
        rig.give_memory(block)
        rig.pool.offer(holder, content(*tokens))
        block.written = 3
    keep_tail(rig.pool, holder, sequence([1, 2, 3]), 3, generated=False)
    assert holder.blocks[0].offered == 3


@pytest.mark.rule("cache.poison-spreads")
def test_what_was_made_from_poisoned_blocks_is_poisoned_too() -> None:
    rig = CacheRig()
    bad, other, clean = rig.enter(), rig.enter(), rig.enter()
    first, second = rig.fill(bad, A, B)
    for block in (first, second):
        block.publisher = bad.number
    rig.pool.share(other, [first])
    (child,) = rig.fill(other, C)
    child.publisher = other.number
    (kept,) = rig.fill(clean, C)
    kept.publisher = clean.number
    late = rig.enter()
    rig.pool.share(late, [first])
    (cached,) = rig.fill(late, content(3, 3, 3, 3))
    rig.leave(late)
    assert cached.valid
    cuts = invalidate_published(rig.pool, bad, rig.holders)
    assert cuts == {other.number: 0}
    assert not first.valid
    assert not second.valid
    assert not child.valid
    assert kept.valid
    assert not cached.allocated, "cached descendants are freed"
    rig.audit()


@pytest.mark.rule("cache.index-while-decoding")
def test_generated_blocks_are_found_while_their_sequence_still_decodes() -> None:
    for phases in (1, 2):
        rig = Rig(phases=phases, session_tokens=64)
        first = rig.push([1, 2, 3], 40)
        while len(rig.tokens(first)) < 20:
            rig.step()
        prompt = [1, 2, 3, *rig.tokens(first)[:17]]
        second = rig.push(prompt, 2)
        while rig.reason(second) is None:
            rig.step()
        end = rig.choice(second).end
        assert end is not None
        assert end.usage.cached_tokens >= 16
        assert rig.reason(first) is None
        rig.run()


@pytest.mark.rule("cache.index-while-decoding")
def test_generated_blocks_of_a_cancelled_sequence_are_kept() -> None:
    for phases in (1, 2):
        rig = Rig(phases=phases)
        first = rig.push([1, 2, 3], 40)
        while len(rig.tokens(first)) < 14:
            rig.step()
        rig.cancel(first)
        rig.run()
        second = rig.push([1, 2, 3, *rig.tokens(first)[:13]], 2)
        rig.run()
        end = rig.choice(second).end
        assert end is not None
        assert end.usage.cached_tokens == 12
        rig.assert_true(second)


@pytest.mark.rule("cache.poison-spreads")
def test_what_was_copied_twice_depends_on_its_source_from_the_first_place_on() -> None:
    rig = CacheRig()
    source, copier = rig.enter(), rig.enter()
    (block,) = rig.fill(source, A)
    block.publisher = source.number
    for position in (8, 4, 12):
        adopt(copier, block, position, [source.number, copier.number])
    assert copier.origins == {source.number: 4}
    adopt(source, block, 0, [source.number, copier.number])
    assert source.origins == {}, "nobody depends on itself"
    rig.leave(source)
    rig.leave(copier)
