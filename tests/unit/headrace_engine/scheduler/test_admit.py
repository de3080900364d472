"""Admission: share what is known, index what is not, stop where that fails."""

from __future__ import annotations

import random

import numpy as np
import pytest
from headrace_engine.cache.block import LogicalBlock, SequenceBlocks, as_bytes
from headrace_engine.scheduler.admit import admit_prompt
from headrace_engine.state.request import MediaSpan, Request, RequestHandle, Sampling
from headrace_engine.state.sequence import Sequence
from support.cache import BLOCK, CacheRig, identity
from support.engine import colliding_fold, small_settings


def admit(
    rig: CacheRig,
    prompt: list[int],
    *,
    prefix_cache: bool = True,
    media: tuple[MediaSpan, ...] = (),
) -> SequenceBlocks:
    holder = rig.enter()
    tokens = np.array(prompt, np.int32)
    request = Request("r", RequestHandle(1), tokens, Sampling(max_new_tokens=1), media=media)
    sequence = Sequence(request, 0, holder.number, tokens, len(tokens), len(tokens), 99, "", 0.0)
    admit_prompt(rig.pool, holder, sequence, small_settings(prefix_cache=prefix_cache))
    return holder


def test_full_blocks_are_indexed_and_the_tail_is_private() -> None:
    rig = CacheRig()
    holder = admit(rig, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert [b.indexed for b in holder.blocks] == [True, True, False]
    assert rig.objects.live == 0, "admission takes no memory"


def test_the_longest_known_prefix_is_shared_whether_valid_or_not() -> None:
    rig = CacheRig()
    first = admit(rig, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    second = admit(rig, [1, 2, 3, 4, 5, 6, 7, 8])
    third = admit(rig, [1, 2, 3, 4, 0, 0, 0, 0, 9])
    assert second.blocks == first.blocks[:2]
    assert third.blocks[0] is first.blocks[0]
    assert third.blocks[1] is not first.blocks[1]
    assert third.blocks[1].parent is first.blocks[0]
    for holder in (first, second, third):
        rig.leave(holder)
    rig.assert_empty()


@pytest.mark.rule("cache.exact-identity")
@pytest.mark.parametrize("seed", range(20))
def test_a_run_taken_from_a_holder_is_what_a_search_for_each_block_finds(seed: int) -> None:
    rng, rig = random.Random(seed), CacheRig(blocks=400)
    root = rig.trie.root(identity())

    def prompt() -> list[int]:
        return [
            token for _ in range(rng.randint(0, 6)) for token in [rng.randint(0, 1)] * BLOCK
        ] + [0]

    for _ in range(40):
        wanted = prompt()
        tokens = as_bytes(np.array(wanted, np.int32))
        found: list[LogicalBlock] = []
        at: LogicalBlock | None = root
        for begin in range(0, len(tokens) - 4 * BLOCK + 1, 4 * BLOCK):
            at = None if at is None else rig.trie.find(at, tokens[begin : begin + 4 * BLOCK])
            found += [] if at is None else [at]
        run = rig.trie.walk(root, tokens, 4 * BLOCK)
        assert [id(block) for block in run] == [id(block) for block in found]
        if rng.random() < 0.3 and rig.holders:
            rig.leave(rng.choice(rig.holders))
        # An image over the second block: its placeholders are tokens like any other.
        image = rng.random() < 0.3 and len(wanted) > 2 * BLOCK
        admit(rig, wanted, media=(MediaSpan(BLOCK, 2 * BLOCK, b"i" * 32),) if image else ())
        rig.audit()


@pytest.mark.rule("blocks.stop-at-first-private")
def test_after_a_refused_block_the_rest_of_the_prompt_is_private() -> None:
    rig = CacheRig(fold=colliding_fold)
    first = admit(rig, [1] * 4)
    second = admit(rig, [2] * 13)
    assert first.blocks[0].indexed
    assert [b.indexed for b in second.blocks] == [False] * 4
    assert second.chain is None
    rig.leave(first)
    third = admit(rig, [3] * 8)
    assert [b.indexed for b in third.blocks] == [True, False]
    assert third.chain is None


def test_without_prefix_caching_every_block_is_private() -> None:
    rig = CacheRig()
    first = admit(rig, [1] * 9, prefix_cache=False)
    second = admit(rig, [1] * 9, prefix_cache=False)
    assert len(rig.trie) == 0
    assert not set(map(id, first.blocks)) & set(map(id, second.blocks))
