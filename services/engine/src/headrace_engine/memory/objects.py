"""ObjectAllocator: cache objects of registered types, simple or composite, all-or-nothing.

Owner    engine thread
Writes   slabs and pages of one region
Never    touches bytes; evicts
Rules    memory.all-or-nothing, memory.stale-handles, memory.exact-undo
Next     headrace_engine.memory.scratch
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, NewType

from headrace_engine.memory.pages import PageAllocator
from headrace_engine.memory.slabs import SlabAllocator, SlabStats

ObjectType = NewType("ObjectType", int)
"""Index of a registered type."""


@dataclass(frozen=True, slots=True)
class Part:
    """``count`` pieces of ``size`` bytes, each aligned to ``align``, of one composite object."""

    size: int
    align: int = 64
    count: int = 1


class Allocation(NamedTuple):
    """Durable record of one object's memory."""

    key: int
    """Counts up; never reused, so an old handle is never taken for a new object."""
    type: ObjectType
    addresses: tuple[int, ...]
    """Byte offset in the region of each piece, in the order of the type's parts."""


_allocation: Callable[[tuple[int, ObjectType, tuple[int]]], Allocation] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]  # known by the annotation
    Allocation,
)
"""As ``Allocation._make``, without a Python call for each."""


def align_up(size: int, align: int) -> int:
    """``size`` rounded up to a multiple of ``align``."""
    return -(-size // align) * align


class ObjectAllocator:
    """One region of ``pages`` pages. Types of the same aligned size share slabs.

    Invariants
        live objects' pieces are disjoint and inside the region
        free pages + slab pages == pages
    """

    __slots__ = ("_classes", "_live", "_max_order", "_next_key", "_types", "page_bytes", "pages")

    def __init__(
        self, *, region_bytes: int, page_bytes: int, max_slab_bytes: int = 1 << 30
    ) -> None:
        """``page_bytes`` is the unit of the region; what is left of it at the end is unused."""
        if page_bytes < 1 or region_bytes < page_bytes:
            raise ValueError(f"a region of {region_bytes} bytes holds no page of {page_bytes}")
        self.page_bytes = page_bytes
        self.pages = PageAllocator(region_bytes // page_bytes)
        self._max_order = min(
            max(0, (max_slab_bytes // page_bytes).bit_length() - 1),
            self.pages.pages.bit_length() - 1,
        )
        self._classes: dict[int, SlabAllocator] = {}
        self._types: list[tuple[SlabAllocator, ...]] = []
        self._live: dict[int, Allocation] = {}
        self._next_key = 1

    def register(self, parts: Sequence[Part]) -> ObjectType:
        """A type of object: one part of count 1 is a simple object, more are a composite."""
        if not parts:
            raise ValueError("an object type needs at least one part")
        pieces: list[SlabAllocator] = []
        for part in parts:
            if part.size < 1 or part.align < 1 or part.count < 1:
                raise ValueError(f"{part} has a size, alignment or count below 1")
            size = align_up(part.size, part.align)
            if size > self.page_bytes << self._max_order:
                raise ValueError(f"a part of {size} bytes is larger than the largest slab")
            pieces += [self._class(size)] * part.count
        self._types.append(tuple(pieces))
        return ObjectType(len(self._types) - 1)

    def sizes(self, type: ObjectType) -> tuple[int, ...]:
        """Bytes of each piece of an object, in the order of its addresses."""
        return tuple(slabs.object_bytes for slabs in self._types[type])

    def alloc(self, type: ObjectType) -> Allocation | None:
        """Every piece of one object, or None and nothing is changed."""
        classes = self._types[type]
        if len(classes) == 1:
            address = classes[0].alloc()
            if address is None:
                return None
            addresses: tuple[int, ...] = (address,)
        else:
            pieces: list[int] = []
            for slabs in classes:
                piece = slabs.alloc()
                if piece is None:
                    for done, taken in zip(classes, pieces, strict=False):
                        done.free(taken)
                    return None
                pieces.append(piece)
            addresses = tuple(pieces)
        allocation = Allocation(self._next_key, type, addresses)
        self._next_key += 1
        self._live[allocation.key] = allocation
        return allocation

    def alloc_many(self, type: ObjectType, count: int) -> list[Allocation]:
        """``count`` simple objects, or fewer where there are not so many; as that many ``alloc``."""
        (slabs,) = self._types[type]
        key, live = self._next_key, self._live
        allocations: list[Allocation] = []
        for address in slabs.alloc_many(count):
            allocation = live[key] = _allocation((key, type, (address,)))
            allocations.append(allocation)
            key += 1
        self._next_key = key
        return allocations

    def free(self, allocation: Allocation) -> None:
        """Gives an object back. A stale handle is a broken invariant."""
        key, type, addresses = allocation
        known = self._live.pop(key, None)
        assert known is allocation, "stale allocation freed"
        for slabs, address in zip(self._types[type], addresses, strict=True):
            slabs.free(address)

    def claim(self, allocation: Allocation) -> None:
        """Takes exactly this freed object again, under its old key: the inverse of ``free``."""
        assert allocation.key not in self._live, "claimed a live object"
        for slabs, address in zip(self._types[allocation.type], allocation.addresses, strict=True):
            slabs.claim(address)
        self._live[allocation.key] = allocation

    def is_live(self, allocation: Allocation) -> bool:
        """Whether the handle still names this object. Memory reuse does not deceive it."""
        return self._live.get(allocation.key) is allocation

    @property
    def live(self) -> int:
        """Objects handed out."""
        return len(self._live)

    def capacity(self, type: ObjectType) -> int:
        """Objects of one simple type that an empty region holds."""
        (slabs,) = self._types[type]
        return slabs.fits(self.pages.pages)

    def capacity_left(self, type: ObjectType) -> int:
        """Upper bound of the objects of a type that could be allocated now without eviction."""
        return min(slabs.available() for slabs in self._types[type])

    def stats(self) -> list[SlabStats]:
        """One entry per size class."""
        return [slabs.stats() for slabs in self._classes.values()]

    def audit(self) -> None:
        """Asserts the invariants. O(objects)."""
        held = sum(slabs.slab_pages() for slabs in self._classes.values())
        assert held + self.pages.free_pages == self.pages.pages, "pages are lost"
        pieces = sorted(
            (address, address + slabs.object_bytes)
            for allocation in self._live.values()
            for slabs, address in zip(
                self._types[allocation.type], allocation.addresses, strict=True
            )
        )
        for (_, end), (start, _) in itertools.pairwise(pieces):
            assert end <= start, "objects overlap"
        assert not pieces or pieces[-1][1] <= self.pages.pages * self.page_bytes
        assert len(pieces) == sum(slabs.used for slabs in self._classes.values())

    def _class(self, size: int) -> SlabAllocator:
        if size not in self._classes:
            self._classes[size] = SlabAllocator(
                self.pages, size, page_bytes=self.page_bytes, max_order=self._max_order
            )
        return self._classes[size]
