"""CacheRegistry: what one cache object holds, said by model parts before the pool is made.

Owner    engine thread, at start
Writes   its own lists
Never    allocates
Rules    cache.one-object-per-block
Next     headrace_engine.scheduler.scheduler
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace_engine.memory.objects import ObjectAllocator, ObjectType, Part, align_up


def piece_bytes(size: int, page_bytes: int, align: int = 64) -> int:
    """Room for a part of a state: a page, or the smallest of its halves, quarters and so on.

    So every slab is one page, a free page is never in the wrong place, and blocks and states may
    follow each other in it. Raises ``ValueError`` for a part larger than a page.
    """
    if size > page_bytes:
        raise ValueError(
            f"a part of the recurrent state has {size} bytes, more than the {page_bytes} of a cache "
            f"block: use larger blocks"
        )
    piece = page_bytes
    while piece % 2 == 0 and piece // 2 >= size and piece // 2 % align == 0:
        piece //= 2
    return piece


def state_blocks(parts: Sequence[int], page_bytes: int) -> int:
    """Pages that one state of these parts takes in an empty region. Raises as ``piece_bytes``."""
    pieces = Counter(piece_bytes(part, page_bytes) for part in parts)
    return sum(-(-count * piece // page_bytes) for piece, count in pieces.items())


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The object types of one engine."""

    prefix: ObjectType
    """One block of tokens across all layers."""
    checkpoint: ObjectType | None
    """A recurrent state; None for models without one."""


class CacheRegistry:
    """Two categories. *Prefix*: bytes are added up into one part, one contiguous object per
    block. *Checkpoint*: one object for each state, of as many parts as are added.

    Registration ends with ``close``.
    """

    __slots__ = ("_align", "_checkpoint_parts", "_closed", "_prefix")

    def __init__(self, align: int = 64) -> None:
        self._align = align
        self._prefix = 0
        self._checkpoint_parts: list[Part] = []
        self._closed = False

    def add_prefix(self, size: int) -> int:
        """Room for ``size`` bytes in every block; returns its offset in the object."""
        assert not self._closed, "registration has ended"
        if size < 1:
            raise ValueError(f"cannot register {size} bytes")
        offset = self._prefix
        self._prefix += align_up(size, self._align)
        return offset

    def add_checkpoint_parts(self, size: int, count: int) -> int:
        """``count`` parts of ``size`` bytes; returns the index of the first."""
        assert not self._closed, "registration has ended"
        first = sum(part.count for part in self._checkpoint_parts)
        self._checkpoint_parts.append(Part(size, self._align, count))
        return first

    def close(self, objects: ObjectAllocator) -> CacheLayout:
        """Registers the object types. Raises ``ValueError`` when nothing is in the prefix."""
        if not self._prefix:
            raise ValueError("no part of the model registered bytes of a block")
        self._closed = True
        prefix = objects.register([Part(self._prefix, self._align)])
        parts = self._checkpoint_parts
        return CacheLayout(prefix, objects.register(parts) if parts else None)
