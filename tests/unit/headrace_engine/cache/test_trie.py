"""PrefixTrie: a key finds, identity decides."""

from __future__ import annotations

from typing import Any

import pytest
from headrace_engine.cache.block import LogicalBlock
from headrace_engine.cache.trie import PrefixTrie, RootIdentity
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
