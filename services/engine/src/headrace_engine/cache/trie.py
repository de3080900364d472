"""PrefixTrie: finds blocks by content in full. A key names a block to others, and never finds one.

Owner    engine thread
Writes   its index; ``indexed`` and identity of blocks
Never    decides what may be shared; allocates
Rules    cache.exact-identity, cache.salted-roots, blocks.strong-parents
Next     headrace_engine.cache.registry
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_contracts.prefix_key import PrefixKey, fold, root_key

from headrace_engine.cache.block import LogicalBlock

Fold = Callable[[PrefixKey, bytes, Sequence[bytes]], PrefixKey]
"""Key of a prefix followed by one block."""


@dataclass(frozen=True, slots=True)
class RootIdentity:
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
    """

    __slots__ = ("_children", "_fold", "_identities", "_nodes", "_roots")

    def __init__(self, fold: Fold = fold) -> None:
        """``fold`` is replaced by tests only, to force collisions."""
        self._fold = fold
        self._nodes: dict[PrefixKey, LogicalBlock] = {}
        self._children: dict[tuple[LogicalBlock, bytes, tuple[bytes, ...]], LogicalBlock] = {}
        """By identity: what is known is found without computing its key."""
        self._roots: dict[RootIdentity, LogicalBlock] = {}
        self._identities: dict[LogicalBlock, RootIdentity] = {}

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
        """The longest run of nodes after ``parent`` with exactly this content, full blocks only."""
        find, found = self._children.get, list[LogicalBlock]()
        for begin in range(0, len(tokens) - block_bytes + 1, block_bytes):
            node = find((parent, tokens[begin : begin + block_bytes], ()))
            if node is None:
                break
            found.append(node)
            parent = node
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
        block.key, block.parent, block.tokens = key, parent, tokens
        block.fingerprints = fingerprints
        block.indexed = True
        parent.refs += 1
        return True

    def erase(self, block: LogicalBlock) -> LogicalBlock:
        """Takes a node out, and returns its parent, whose reference the caller drops."""
        assert block.indexed
        assert block.key is not None
        assert block.parent is not None
        parent = block.parent
        del self._nodes[block.key]
        del self._children[parent, block.tokens, block.fingerprints]
        block.indexed = False
        block.key, block.parent, block.tokens, block.fingerprints = None, None, b"", ()
        return parent

    def key_after(self, parent: LogicalBlock, tokens: bytes) -> PrefixKey:
        """Key of the block with this content after ``parent``, known or not."""
        assert parent.key is not None
        return self._fold(parent.key, tokens, ())

    def identity(self, root: LogicalBlock) -> RootIdentity:
        """What a root stands for."""
        return self._identities[root]

    def nodes(self) -> list[LogicalBlock]:
        """Every node, in order of insertion."""
        return list(self._nodes.values())
