"""ObjectAllocator: all pieces or none, shared size classes, stale handles."""

from __future__ import annotations

import pytest
from headrace_engine.memory.objects import ObjectAllocator, ObjectType, Part, align_up


def make(pages: int = 8, page: int = 1024) -> ObjectAllocator:
    return ObjectAllocator(region_bytes=pages * page, page_bytes=page)


def test_a_simple_object_of_page_size_uses_the_region_to_the_last_page() -> None:
    objects = make(13)
    block = objects.register([Part(1024)])
    assert objects.capacity(block) == 13
    taken = [objects.alloc(block) for _ in range(13)]
    assert all(taken)
    assert objects.alloc(block) is None
    assert sorted(a.addresses[0] for a in taken if a) == [i * 1024 for i in range(13)]
    objects.audit()


def test_types_of_one_aligned_size_share_slabs() -> None:
    objects = make()
    first = objects.register([Part(1000)])
    second = objects.register([Part(1024)])
    a = objects.alloc(first)
    assert a is not None
    objects.free(a)
    b = objects.alloc(second)
    assert b is not None
    assert len(objects.stats()) == 1
    assert a.addresses == b.addresses


@pytest.mark.rule("memory.all-or-nothing")
def test_a_composite_that_does_not_fit_leaves_nothing_behind() -> None:
    objects = make(4)
    block = objects.register([Part(1024)])
    composite = objects.register([Part(1024), Part(500, count=3)])
    held = [objects.alloc(block) for _ in range(3)]
    before = (objects.pages.runs(), objects.stats())
    assert objects.alloc(composite) is None
    assert (objects.pages.runs(), objects.stats()) == before
    assert held[0] is not None
    assert held[1] is not None
    objects.free(held[0])
    objects.free(held[1])
    whole = objects.alloc(composite)
    assert whole is not None
    assert len(set(whole.addresses)) == 4
    objects.audit()


def test_a_composite_has_one_address_per_piece() -> None:
    objects = make(16)
    composite = objects.register([Part(1000), Part(100, count=2)])
    allocation = objects.alloc(composite)
    assert allocation is not None
    assert len(set(allocation.addresses)) == 3
    objects.audit()
    objects.free(allocation)
    assert objects.pages.coalesced()


@pytest.mark.rule("memory.stale-handles")
def test_a_stale_handle_is_told_from_the_object_that_took_its_place() -> None:
    objects = make(1)
    block = objects.register([Part(1024)])
    old = objects.alloc(block)
    assert old is not None
    objects.free(old)
    new = objects.alloc(block)
    assert new is not None
    assert new.addresses == old.addresses
    assert objects.is_live(new)
    assert not objects.is_live(old)
    with pytest.raises(AssertionError, match="stale"):
        objects.free(old)


@pytest.mark.parametrize(
    ("part", "message"),
    [(Part(0), "below 1"), (Part(10, align=0), "below 1"), (Part(10_000_000), "largest slab")],
)
def test_a_part_that_cannot_be_is_refused(part: Part, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make().register([part])


def test_a_type_without_parts_and_a_region_without_pages_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        make().register([])
    with pytest.raises(ValueError, match="holds no page"):
        ObjectAllocator(region_bytes=10, page_bytes=64)


def test_sizes_are_rounded_up_to_the_alignment() -> None:
    assert [align_up(n, 64) for n in (1, 64, 65)] == [64, 64, 128]


def test_audit_notices_lost_pages() -> None:
    objects = make()
    objects.pages.alloc(0)
    with pytest.raises(AssertionError, match="lost"):
        objects.audit()


@pytest.mark.parametrize("size", [64, 40])
def test_many_objects_at_once_are_those_that_single_calls_would_take(size: int) -> None:
    def made() -> tuple[ObjectAllocator, ObjectType]:
        objects = ObjectAllocator(region_bytes=64 * 8, page_bytes=64)
        return objects, objects.register([Part(size, 8)])

    (at_once, kind), (one_by_one, other) = made(), made()
    many = at_once.alloc_many(kind, 5)
    singles = [one_by_one.alloc(other) for _ in range(5)]
    assert many == singles
    assert all(at_once.is_live(allocation) for allocation in many)
    at_once.audit()
    rest = at_once.alloc_many(kind, 100)
    assert 0 < len(rest) < 100
    assert at_once.alloc_many(kind, 1) == []
    for allocation in many + rest:
        at_once.free(allocation)
    at_once.audit()
    assert at_once.pages.coalesced()
