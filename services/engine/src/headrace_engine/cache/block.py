"""LogicalBlock, CacheBlock and SequenceBlocks: token positions, and what may be behind them.

Owner    engine thread
Writes   nothing by itself; the pools, the trie and scheduler.replay write these
Never    touches bytes
Rules    blocks.three-predicates, blocks.one-owner, blocks.held-in-runs
Next     headrace_engine.cache.logical_pool
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import NamedTuple, NewType

import numpy as np
from headrace_contracts.prefix_key import PrefixKey
from numpy.typing import NDArray

from headrace_engine.memory.objects import Allocation, ObjectType

_LITTLE = sys.byteorder == "little"

Stamp = NewType("Stamp", int)
"""Logical time of last use; larger is later."""

Rank = tuple[int, int, float, int]
"""Place in the total order: (band, place of the tenant, deadline, number). Smaller goes first."""


@dataclass(slots=True, eq=False)
class CacheBlock:
    """A slot that may have memory behind it. Exactly one LogicalBlock owns it.

    Invariants
        allocation is set  iff  the owner is pinned by it
        listed  implies  allocation is set and the owner has no holder
    """

    type: ObjectType
    owner: LogicalBlock
    allocation: Allocation | None = None
    stamp: Stamp = Stamp(0)
    """When it was last held."""
    listed: bool = False
    """Whether it stands in SortedBlocks: allocated, and held by nobody."""


NOBODY: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class HeldRun:
    """Consecutive blocks of one prefix that the same sequences hold.

    Who they are stands once for all of these blocks, so that to share a known beginning, and to
    leave it, costs the same for one block as for a thousand. It is split where somebody shares a
    part of it, and made whole again when nobody tells the parts apart any more.

    Invariants
        ``blocks[first:end]`` of every holder are the same, and name this run; no other block does
        of two runs in a row the second has fewer holders, all of which hold the first too
        valid  implies  every block of it is valid
        addresses is set  implies  they are those of its blocks that have memory, in order
    """

    holders: dict[SequenceBlocks, None]
    """In order of arrival; a dict so that leaving costs the same for the last of a thousand."""
    first: int
    """Index of its first block in a sequence."""
    end: int
    """Index behind its last block."""
    valid: bool = False
    """Whether that was seen. A block whose content is distrusted takes it back."""
    addresses: array[int] | None = None
    """Byte offsets, once somebody asked for them. A block whose memory changes takes them back."""


UNHELD = HeldRun({}, 0, 0)
"""Of every block that nobody holds."""


# Written out, since to call ``list[X]`` takes ten times as long as ``[]``.
def _no_blocks() -> list[LogicalBlock]:
    return []


def _no_origins() -> dict[int, int]:
    return {}


@dataclass(slots=True, eq=False)
class LogicalBlock:
    """``capacity`` consecutive token positions of one prefix.

    Three independent predicates, never merged: *indexed* (the trie can find it),
    *allocated* (``slot.allocation`` is set), *valid* (committed passes wrote its content).

    A block that is not indexed may be *offered* instead: others can find its first tokens, and
    copy them, but never hold it. A recurrent *state* is a block of no tokens: ``offset`` is the
    position it stands at. It is the frontier of a sequence, which holds it, or a checkpoint,
    which belongs to the block (``parent``) in which or at whose end its position lies.

    Invariants
        refs == len(followers) + len(states) + (slot.allocation is set); of a root, sequences besides
        refs == 0 and nobody holds it  implies  it is in no trie and no sequence
        held  implies  its parent, where it is indexed, is held by the same sequences, and maybe more
        indexed  implies  tokens, key and parent are set, and never change again
        offered > 0  implies  not indexed, no followers, and tokens and parent are set
        valid  implies  allocated
        states is not empty  implies  valid
        parent is set  implies  parent.offset + parent.capacity == offset, or the parent is a root
    """

    offset: int
    """Position of the first token, in tokens from the start of the sequence."""
    capacity: int
    """Tokens. Equal for every block of one pool; 0 for a root and for a state."""
    slot: CacheBlock | None = None
    """None for a root only."""
    parent: LogicalBlock | None = None
    """A strong reference. Set while indexed or offered."""
    key: PrefixKey | None = None
    tokens: bytes = b""
    """Little-endian int32. Set while indexed or offered; of an offered block those it is found by."""
    fingerprints: tuple[bytes, ...] = ()
    """Of media items whose first token lies here: position in the block and number of tokens (int32
    each), then digest."""
    content: bytes = b""
    """``tokens`` and ``fingerprints`` as one, by which siblings are in order."""
    indexed: bool = False
    valid: bool = False
    """A private block's content may be valid in part: its sequence knows how far."""
    refs: int = 0
    """What keeps it besides its holders: they are counted where they stand."""
    run: HeldRun = UNHELD
    """Who holds it, and its neighbours with it."""
    publisher: int = 0
    """Number of the sequence whose pass made it valid; 0 when it is not valid."""
    maker: int = 0
    """Number of the sequence that made it: with ``offset``, its name in the journal."""
    offered: int = 0
    """Tokens by which others find it as a partial sibling; 0: it is not offered."""
    written: int = 0
    """Of an offered block: its first tokens whose content committed passes wrote."""
    child: LogicalBlock | None = None
    """The indexed or offered block that follows it, as long as there was never another: the most have
    one, and no container for it."""
    children: dict[bytes, list[LogicalBlock]] | None = None
    """Those that follow it where ``child`` is not set: by the first four bytes of their content, and
    those that have these in common in order of content. Never empty."""
    origins: frozenset[int] = NOBODY
    """Numbers of sequences, resident then, of whose content this was made by a copy."""
    states: tuple[LogicalBlock, ...] = ()
    """Checkpoints of a recurrent state in it or at its end."""

    @property
    def holders(self) -> dict[SequenceBlocks, None]:
        """The sequences that hold it."""
        return self.run.holders

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.offset + self.capacity

    @property
    def allocated(self) -> bool:
        """Whether memory is behind it."""
        return self.slot is not None and self.slot.allocation is not None

    @property
    def followers(self) -> list[LogicalBlock]:
        """Indexed and offered blocks that follow it. O(their number)."""
        if self.children is None:
            return [] if self.child is None else [self.child]
        return [block for alike in self.children.values() for block in alike]

    @property
    def extent(self) -> int:
        """Its first tokens that another sequence may copy from here, 0 to ``capacity``."""
        if not self.valid:
            return 0
        return self.capacity if self.indexed else self.written


class Sibling(NamedTuple):
    """A block that begins as the sequence goes on where it stops to share whole blocks."""

    source: LogicalBlock
    common: int
    """Tokens, from the block's beginning, that are the same in both."""


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The blocks one sequence holds, in position order, and its place in the order.

    Invariants
        blocks[i].offset == i * capacity
        the first ``chained`` blocks are indexed, each the parent of the next
        chain is None  implies  nothing further is indexed (blocks.stop-at-first-private)
    """

    number: int
    """The sequence's number."""
    root: LogicalBlock
    chain: LogicalBlock | None
    """The last indexed block (at first the root); None once one could not be indexed."""
    chained: int = 0
    prefix: bytes = b""
    """Its known tokens when it was admitted, as an identity: in them the content of its indexed blocks
    stands in one piece. Empty where tokens alone are no identity."""
    blocks: list[LogicalBlock] = field(default_factory=_no_blocks)
    eligible: bool = True
    """False once its sequence has ended: what it holds is not taken, but freed soon."""
    changed: bool = True
    """A block's memory or validity changed since the last plan."""
    sibling: Sibling | None = None
    """Where the block after the shared ones can be copied from in part."""
    frontier: LogicalBlock | None = None
    """The live recurrent state; None for models without one. ``offset`` is kept while it waits."""
    checkpointed: int = 0
    """Position of the last checkpoint on the way to where it is; 0: none."""
    origins: dict[int, int] = field(default_factory=_no_origins)
    """Numbers of sequences whose content it copied -> first position that depends on it."""


def as_bytes(tokens: NDArray[np.int32]) -> bytes:
    """Tokens as an identity: little-endian int32."""
    return tokens.tobytes() if _LITTLE else tokens.byteswap().tobytes()
