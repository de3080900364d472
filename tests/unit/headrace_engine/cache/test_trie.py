"""PrefixTrie: a key finds, identity decides."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from headrace_engine.cache.block import LogicalBlock
from headrace_engine.cache.trie import PrefixTrie, RootIdentity
from hypothesis import given, settings
from support.cache import CacheRig, content, identity


def collide(parent: Any, tokens: bytes, fingerprints: Any) -> Any:
    return b"\0" * 16


def node(offset: int = 0) -> LogicalBlock:
    return LogicalBlock(offset, 4)


def test_a_block_is_found_under_its_parent_by_its_tokens() -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    first, second = node(), node(4)
    assert trie.insert(first, root, content(1, 2, 3, 4))
    assert trie.insert(second, first, content(1, 2, 3, 4))
    assert trie.find(root, content(1, 2, 3, 4)) is first
    assert trie.find(first, content(1, 2, 3, 4)) is second
    assert trie.find(first, content(1, 2, 3, 5)) is None
    assert trie.find(second, content(1, 2, 3, 4)) is None
    assert trie.nodes() == [first, second]


@pytest.mark.rule("cache.exact-identity")
def test_a_colliding_key_never_makes_two_contents_one() -> None:
    trie = PrefixTrie(collide)
    root, other = trie.root(identity()), trie.root(identity(tenant="b"))
    block = node()
    assert trie.insert(block, root, content(1, 2, 3, 4))
    assert trie.find(root, content(1, 2, 3, 4)) is block
    assert trie.find(root, content(4, 3, 2, 1)) is None, "tokens"
    assert trie.find(other, content(1, 2, 3, 4)) is None, "parent"
    assert trie.find(root, content(1, 2, 3, 4), (b"image",)) is None, "fingerprints"
    moved = node(4)
    moved.indexed = False
    block.offset = 4
    assert trie.find(root, content(1, 2, 3, 4)) is None, "offset"


@pytest.mark.rule("cache.first-wins")
def test_the_first_with_a_key_stays_and_the_second_is_private() -> None:
    trie = PrefixTrie(collide)
    root = trie.root(identity())
    first, second = node(), node()
    assert trie.insert(first, root, content(1, 2, 3, 4))
    assert not trie.insert(second, root, content(5, 6, 7, 8))
    assert not second.indexed
    assert second.key is None
    assert second.parent is None


def test_an_empty_fingerprint_never_matches_not_even_itself() -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    assert not trie.insert(node(), root, content(1, 2, 3, 4), (b"",))
    assert trie.find(root, content(1, 2, 3, 4), (b"",)) is None
    assert trie.insert(node(), root, content(1, 2, 3, 4), (b"x",))


@pytest.mark.rule("cache.salted-roots")
def test_whatever_may_not_share_has_another_root() -> None:
    trie = PrefixTrie()
    identities = [
        identity(),
        identity(tenant="a"),
        identity(salt=b"a"),
        identity(adapter="a"),
        RootIdentity("a", "f32", "", "", b""),
        RootIdentity("w", "a", "", "", b""),
    ]
    roots = [trie.root(i) for i in identities]
    assert len({id(root) for root in roots}) == len({root.key for root in roots}) == 6
    assert trie.root(identity(tenant="a")) is roots[1]
    trie.drop_root(roots[1])
    assert trie.root(identity(tenant="a")) is not roots[1]


@pytest.mark.rule("blocks.strong-parents")
def test_a_child_keeps_its_parents_until_it_is_gone(rig: CacheRig) -> None:
    holder = rig.enter()
    first, second = rig.fill(holder, content(1, 2, 3, 4), content(5, 6, 7, 8))
    rig.leave(holder)
    rig.audit()
    rig.objects.free(rig.pool.unpin(first))
    rig.audit()
    assert first.indexed, "the parent lost its memory, its child still stands under it"
    assert not first.valid
    rig.objects.free(rig.pool.unpin(second))
    assert len(rig.trie) == 0
    rig.assert_empty()


def test_erasing_gives_the_parent_back() -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    block = node()
    trie.insert(block, root, content(1, 2, 3, 4))
    assert root.refs == 1
    assert trie.erase(block) is root
    assert trie.find(root, content(1, 2, 3, 4)) is None


Symbols = tuple[int | bytes, ...]
"""Tokens, and before the first token of an image its digest."""


def as_identity(symbols: Symbols) -> tuple[bytes, tuple[bytes, ...]]:
    """As blocks have it: tokens, and fingerprints with their places."""
    tokens: list[int] = []
    marks: list[bytes] = []
    for symbol in symbols:
        if isinstance(symbol, bytes):
            marks.append(len(tokens).to_bytes(4, "little") + symbol)
        else:
            tokens.append(symbol)
    return content(*tokens), tuple(marks)


def common_tokens(one: Symbols, other: Symbols) -> int:
    """Symbol by symbol."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += not isinstance(left, bytes)
    return count


def symbols(length: int) -> st.SearchStrategy[Symbols]:
    item = st.tuples(
        st.sampled_from([None, None, None, b"\1" * 32, b"\1" * 31 + b"\2"]),
        st.sampled_from([0, 1, 2, 256, 65536, 2**31 - 1]),
    )
    return st.lists(item, min_size=1, max_size=length).map(
        lambda items: tuple(s for mark, token in items for s in (mark, token) if s is not None)
    )


@pytest.mark.rule("siblings.exact-beginning")
@settings(deadline=None, max_examples=200)
@given(
    known=st.lists(symbols(4), max_size=12),
    wanted=symbols(4),
    gone=st.sets(st.integers(0, 11)),
    own=st.none() | st.integers(0, 11),
)
def test_the_closest_is_what_a_look_at_every_block_finds(
    known: list[Symbols], wanted: Symbols, gone: set[int], own: int | None
) -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    blocks: dict[LogicalBlock, Symbols] = {}
    for place, content_ in enumerate(known):
        block = node()
        tokens, marks = as_identity(content_)
        if len(tokens) < 16:
            trie.offer(block, root, tokens, marks)
        elif not trie.insert(block, root, tokens, marks):
            continue
        if place in gone:
            trie.erase(block)
        else:
            blocks[block] = content_
    besides = list(blocks)[own] if own is not None and own < len(blocks) else None
    best = max((common_tokens(c, wanted) for b, c in blocks.items() if b is not besides), default=0)
    found = trie.closest(root, *as_identity(wanted), besides)
    if not best:
        assert found is None
        return
    assert found is not None
    block, common = found
    assert common == best == common_tokens(blocks[block], wanted)
    assert block is not besides


def test_of_several_alike_the_closest_is_one_that_is_valid() -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    blocks = [node() for _ in range(3)]
    for block in blocks:
        trie.offer(block, root, content(1, 2))
    blocks[1].valid = True
    assert trie.closest(root, content(1, 2, 3)) == (blocks[1], 2)


def test_of_many_that_have_all_of_it_the_closest_is_one_that_is_preferred() -> None:
    trie = PrefixTrie()
    root = trie.root(identity())
    blocks = [node() for _ in range(12)]
    for place, block in enumerate(blocks):
        trie.offer(block, root, content(1, 2, *[place // 4] * (place > 3)))
    trie.offer(node(), root, content(1, 3))

    def prefers(block: LogicalBlock) -> bool:
        return block is blocks[9]

    assert trie.closest(root, content(1, 2), prefers=prefers) == (blocks[9], 2)
    assert trie.closest(root, content(1, 2)) == (blocks[0], 2), "none is valid"
    assert trie.closest(root, content(1, 2, 9), prefers=prefers) != (blocks[9], 2)
