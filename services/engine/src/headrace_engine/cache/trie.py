"""PrefixTrie: finds blocks by content in full. A key names a block to others, and never finds one.

Owner    engine thread
Writes   its index; ``indexed`` and identity of blocks
Never    decides what may be shared; allocates
Rules    cache.exact-identity, cache.salted-roots, blocks.strong-parents, siblings.exact-beginning
Next     headrace_engine.cache.registry
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from headrace_contracts.prefix_key import PrefixKey, fold, root_key

from headrace_engine.cache.block import LogicalBlock
from headrace_engine.cache.changes import Changes

Fold = Callable[[PrefixKey, bytes, Sequence[bytes]], PrefixKey]
"""Key of a prefix followed by one block."""

_IMAGE = b"\xff\xff\xff\xff"
"""No token: tokens are not negative."""
_NEAR = 2
"""Neighbours looked at on each side: those with the same beginning stand side by side."""
_ALIKE = 16
"""Of those that have all of it, how many are looked at for one that is preferred."""


class RootIdentity(NamedTuple):
    """Whatever may not share cached blocks, field by field."""

    weights_version: str
    kv_dtype: str
    tenant: str
    adapter: str
    salt: bytes


class PrefixTrie:
    """Nodes by cumulative key. The first with a key stays; another with the same is refused.

    Invariants
        a node's parent is a root or a node of this trie
        ``_nodes[node.key] is node`` for every node
        ``_children[node.parent, node.tokens, node.fingerprints] is node`` for every node
        ``parent.followers`` are the nodes and offered blocks after ``parent``
    """

    __slots__ = ("_children", "_fold", "_identities", "_nodes", "_roots", "changes", "offered")

    def __init__(self, fold: Fold = fold) -> None:
        """``fold`` is replaced by tests only, to force collisions."""
        self._fold = fold
        self._nodes: dict[PrefixKey, LogicalBlock] = {}
        self._children: dict[tuple[LogicalBlock, bytes, tuple[bytes, ...]], LogicalBlock] = {}
        """By identity: what is known is found without computing its key."""
        self._roots: dict[RootIdentity, LogicalBlock] = {}
        self._identities: dict[LogicalBlock, RootIdentity] = {}
        self.offered: dict[LogicalBlock, None] = {}
        """Partial siblings, in order of their offer."""
        self.changes: Changes | None = None
        """Where changes of blocks are marked, the pool's too. None: nobody wants to know."""

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def roots(self) -> int:
        """Roots that some sequence or block refers to."""
        return len(self._roots)

    def root(self, identity: RootIdentity) -> LogicalBlock:
        """The block before position 0 of one salted tree; made when first asked for."""
        root = self._roots.get(identity)
        if root is None:
            key = root_key(
                weights_version=identity.weights_version,
                kv_dtype=identity.kv_dtype,
                tenant=identity.tenant,
                adapter=identity.adapter,
                salt=identity.salt,
            )
            root = LogicalBlock(offset=0, capacity=0, key=key)
            self._roots[identity] = root
            self._identities[root] = identity
        return root

    def drop_root(self, root: LogicalBlock) -> None:
        """Forgets a root that nothing refers to any more."""
        del self._roots[self._identities.pop(root)]

    def find(
        self, parent: LogicalBlock, tokens: bytes, fingerprints: tuple[bytes, ...] = ()
    ) -> LogicalBlock | None:
        """The node after ``parent`` with exactly this content, or None."""
        node = self._children.get((parent, tokens, fingerprints))
        return node if node is not None and node.offset == parent.end else None

    def walk(self, parent: LogicalBlock, tokens: bytes, block_bytes: int) -> list[LogicalBlock]:
        """The longest run of nodes after ``parent`` with exactly this content, full blocks only.

        Whoever came last to a node that is held has gone on from there: as far as its prefix is the
        same, the run is its blocks, and they are not looked for one by one.
        """
        find, found = self._children.get, list[LogicalBlock]()
        at, whole = 0, len(tokens) // block_bytes * block_bytes
        while at < whole:
            node = find((parent, tokens[at : at + block_bytes], ()))
            if node is None:
                break
            found.append(node)
            if holders := node.run.holders:
                holder = next(reversed(holders))
                end, begin = node.end // node.capacity, at + block_bytes
                most = min(holder.chained - end, (whole - begin) // block_bytes)
                theirs = holder.prefix[end * block_bytes : (end + most) * block_bytes]
                mine = tokens[begin : begin + len(theirs)]
                found += holder.blocks[end : end + _same_blocks(theirs, mine, block_bytes)]
            parent, at = found[-1], len(found) * block_bytes
        return found

    def insert(
        self,
        block: LogicalBlock,
        parent: LogicalBlock,
        tokens: bytes,
        fingerprints: tuple[bytes, ...] = (),
    ) -> bool:
        """Makes a private full block discoverable. False: its key is taken, it stays private.

        The new child's reference keeps the parent.
        """
        assert not block.indexed, "indexed twice"
        assert parent.key is not None
        assert block.offset == parent.offset + parent.capacity
        if fingerprints and not all(fingerprints):
            return False
        key = self._fold(parent.key, tokens, fingerprints)
        if key in self._nodes:
            return False
        self._nodes[key] = block
        self._children[parent, tokens, fingerprints] = block
        block.key = key
        block.indexed = True
        _adopt(parent, block, tokens, fingerprints)
        if self.changes is not None:
            self.changes.place(block)
        return True

    def offer(
        self,
        block: LogicalBlock,
        parent: LogicalBlock,
        tokens: bytes,
        fingerprints: tuple[bytes, ...] = (),
    ) -> None:
        """Lets others find the beginning of a private block. Its reference keeps the parent."""
        assert not block.indexed, "offered, and can be found whole"
        assert not block.offered, "offered twice"
        assert block.offset == parent.offset + parent.capacity
        block.offered = len(tokens) // 4
        self.offered[block] = None
        _adopt(parent, block, tokens, fingerprints)
        if self.changes is not None:
            self.changes.place(block)

    def erase(self, block: LogicalBlock) -> LogicalBlock:
        """Takes a node or an offer out, and returns its parent, whose reference the caller drops."""
        parent = block.parent
        assert parent is not None
        if parent.child is block:
            parent.child = None
        else:
            _disown(parent, block)
        if block.indexed:
            assert block.key is not None
            del self._nodes[block.key]
            del self._children[parent, block.tokens, block.fingerprints]
        else:
            del self.offered[block]
        block.indexed, block.offered, block.written = False, 0, 0
        block.key = block.parent = None
        block.tokens = block.content = b""
        block.fingerprints = ()
        if self.changes is not None:
            self.changes.touched[block] = None
        return parent

    def closest(
        self,
        parent: LogicalBlock,
        tokens: bytes,
        fingerprints: tuple[bytes, ...] = (),
        besides: LogicalBlock | None = None,
        prefers: Callable[[LogicalBlock], bool] = attrgetter("valid"),
    ) -> tuple[LogicalBlock, int] | None:
        """The block after ``parent`` that begins as ``tokens`` do, for the most tokens, and how many.

        Of several alike one that is preferred: that is valid now. None: none has the first token.
        """
        wanted = _joined(tokens, fingerprints) if fingerprints else tokens
        if parent.children is not None:
            alike = parent.children.get(wanted[:4])
        else:
            only = parent.child
            alike = [only] if only is not None and only.content[:4] == wanted[:4] else None
        if alike is None:
            return None
        at = bisect_left(alike, wanted, key=_content)
        best: tuple[int, bool, int] = (0, False, 0)
        found: LogicalBlock | None = None
        for near in range(max(at - _NEAR, 0), min(at + _ALIKE, len(alike))):
            block = alike[near]
            if near > at + _NEAR and (best[1] or not block.content.startswith(wanted)):
                break
            if block is besides:
                continue
            common = _common(wanted, block.content)
            common = _whole_tokens(common, fingerprints) if fingerprints else common // 4
            if common and common >= best[0]:
                fit = (common, prefers(block), -near)
                if fit > best:
                    best, found = fit, block
        return None if found is None else (found, best[0])

    def key_after(
        self, parent: LogicalBlock, tokens: bytes, fingerprints: tuple[bytes, ...] = ()
    ) -> PrefixKey:
        """Key of the block with this content after ``parent``, known or not."""
        assert parent.key is not None
        return self._fold(parent.key, tokens, fingerprints)

    def identity(self, root: LogicalBlock) -> RootIdentity:
        """What a root stands for."""
        return self._identities[root]

    def nodes(self) -> list[LogicalBlock]:
        """Every node, in order of insertion."""
        return list(self._nodes.values())


_content = attrgetter("content")


def _same_blocks(one: bytes, other: bytes, block_bytes: int) -> int:
    """How many whole blocks of tokens, from the beginning on, are the same in both."""
    same, most, back = 0, len(one) // block_bytes, 1
    tried = most  # most often all, or all but a few; else halves of what is not known
    while same < most:
        begin, end = same * block_bytes, tried * block_bytes
        if one[begin:end] == other[begin:end]:
            same = tried
        else:
            most = tried - 1
        tried = max((same + most + 1) // 2, most + 1 - back)
        back *= 2
    return same


def _adopt(
    parent: LogicalBlock, block: LogicalBlock, tokens: bytes, fingerprints: tuple[bytes, ...]
) -> None:
    """The block follows ``parent``, with this content. Its reference keeps the parent."""
    block.parent, block.tokens = parent, tokens
    block.content = tokens
    if fingerprints:
        block.fingerprints, block.content = fingerprints, _joined(tokens, fingerprints)
    parent.refs += 1
    children = parent.children
    if children is None:
        only = parent.child
        if only is None:
            parent.child = block
            return
        children = parent.children = {only.content[:4]: [only]}
        parent.child = None
    beginning = block.content[:4]
    alike = children.get(beginning)
    if alike is None:
        children[beginning] = [block]
    else:
        insort(alike, block, key=_content)


def _disown(parent: LogicalBlock, block: LogicalBlock) -> None:
    """The block, one of several that follow ``parent`` or did, no longer does."""
    children = parent.children
    assert children is not None
    beginning = block.content[:4]
    alike = children[beginning]
    if len(alike) > 1:
        at = bisect_left(alike, block.content, key=_content)
        while alike[at] is not block:
            at += 1  # offers may be equal
        del alike[at]
        return
    del children[beginning]
    if not children:
        parent.children = None


def _joined(tokens: bytes, fingerprints: Sequence[bytes]) -> bytes:
    """Tokens as bytes, with each item's digest before its first token.

    In order of these the neighbours have the longest beginning in common.
    """
    if not fingerprints:
        return tokens
    parts: list[bytes] = []
    done = 0
    for fingerprint in fingerprints:
        at = 4 * int.from_bytes(fingerprint[:4], "little")
        parts += (tokens[done:at], _IMAGE, fingerprint[4:])
        done = at
    return b"".join((*parts, tokens[done:]))


def _common(one: bytes, other: bytes) -> int:
    """Bytes at the beginning that are the same."""
    length = min(len(one), len(other))
    differs = int.from_bytes(one[:length], "little") ^ int.from_bytes(other[:length], "little")
    return length if not differs else ((differs & -differs).bit_length() - 1) // 8


def _whole_tokens(common: int, fingerprints: Sequence[bytes]) -> int:
    """Tokens in the first ``common`` bytes of what ``_joined`` made with these fingerprints."""
    marks = 0
    for fingerprint in fingerprints:
        position = int.from_bytes(fingerprint[:4], "little")
        mark = len(_IMAGE) + len(fingerprint) - 4
        if common < 4 * position + marks + mark + 4:
            return min((common - marks) // 4, position)
        marks += mark
    return (common - marks) // 4
