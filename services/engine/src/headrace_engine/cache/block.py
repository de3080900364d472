"""LogicalBlock, CacheBlock and SequenceBlocks: token positions, and what may be behind them.

Owner    engine thread
Writes   nothing by itself; the pools, the trie and scheduler.replay write these
Never    touches bytes
Rules    blocks.three-predicates, blocks.one-owner, blocks.strong-parents
Next     headrace_engine.cache.logical_pool
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import NewType

import numpy as np
from headrace_contracts.prefix_key import PrefixKey
from numpy.typing import NDArray

from headrace_engine.memory.objects import Allocation, ObjectType

_LITTLE = sys.byteorder == "little"

Stamp = NewType("Stamp", int)
"""Logical time of last use; larger is later."""

Rank = tuple[int, int, int]
"""Place in the total order: (band, place of the tenant, number). Smaller goes first."""


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


@dataclass(slots=True, eq=False)
class LogicalBlock:
    """``capacity`` consecutive token positions of one prefix.

    Three independent predicates, never merged: *indexed* (the trie can find it),
    *allocated* (``slot.allocation`` is set), *valid* (committed passes wrote its content).

    Invariants
        refs == len(holders) + indexed children + (slot.allocation is set)
        refs == 0  implies  it is in no trie and no sequence
        indexed  implies  tokens, key and parent are set, and never change again
        valid  implies  allocated
        parent is set  implies  parent.offset + parent.capacity == offset, or the parent is a root
    """

    offset: int
    """Position of the first token, in tokens from the start of the sequence."""
    capacity: int
    """Tokens. Equal for every block of one pool; 0 for a root."""
    slot: CacheBlock | None = None
    """None for a root only."""
    parent: LogicalBlock | None = None
    """A strong reference. Set while indexed."""
    key: PrefixKey | None = None
    tokens: bytes = b""
    """Little-endian int32. Set while indexed."""
    fingerprints: tuple[bytes, ...] = ()
    """Of media items whose first token lies here."""
    indexed: bool = False
    valid: bool = False
    """A private block's content may be valid in part: its sequence knows how far."""
    refs: int = 0
    holders: dict[SequenceBlocks, None] = field(default_factory=dict["SequenceBlocks", None])
    """In order of arrival; a dict so that leaving costs the same for the last of a thousand."""
    publisher: int = 0
    """Number of the sequence whose pass made it valid; 0 when it is not valid."""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.offset + self.capacity

    @property
    def allocated(self) -> bool:
        """Whether memory is behind it."""
        return self.slot is not None and self.slot.allocation is not None


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
    blocks: list[LogicalBlock] = field(default_factory=list[LogicalBlock])
    eligible: bool = True
    """False once its sequence has ended: what it holds is not taken, but freed soon."""
    changed: bool = True
    """A block's memory or validity changed since the last plan."""


def as_bytes(tokens: NDArray[np.int32]) -> bytes:
    """Tokens as an identity: little-endian int32."""
    return tokens.tobytes() if _LITTLE else tokens.byteswap().tobytes()
