"""SlabAllocator: partial slabs first, empty slabs go back, objects stay inside their slab."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from headrace_engine.memory.pages import PageAllocator
from headrace_engine.memory.slabs import SlabAllocator, slab_order
from hypothesis import given, settings


def make(pages: int = 16, size: int = 300, page: int = 1000, order: int = 2) -> SlabAllocator:
    return SlabAllocator(PageAllocator(pages), size, page_bytes=page, max_order=order)


def test_a_slab_is_doubled_until_it_is_well_used_or_the_largest() -> None:
    assert slab_order(1000, 1000, 5) == 0
    assert slab_order(2100, 1000, 5) == 5
    assert slab_order(300, 1000, 3) == 2  # 13 of 300 in 4000 are 97.5 %
    assert slab_order(737, 1000, 2) == 2


def test_a_partial_slab_is_filled_before_a_new_one_is_taken() -> None:
    slabs = make()
    first = [slabs.alloc() for _ in range(slabs.capacity)]
    other = slabs.alloc()
    assert other is not None
    assert slabs.stats().full == 1
    assert slabs.stats().partial == 1
    assert first[3] is not None
    slabs.free(first[3])
    assert slabs.alloc() == first[3]


@pytest.mark.rule("memory.coalesce")
def test_an_empty_slab_returns_to_the_pages_at_once() -> None:
    pages = PageAllocator(8)
    slabs = SlabAllocator(pages, 300, page_bytes=1000, max_order=2)
    address = slabs.alloc()
    assert address is not None
    assert pages.free_pages == 4
    slabs.free(address)
    assert pages.coalesced()
    assert slabs.slab_pages() == 0


def test_an_object_freed_twice_or_from_nowhere_is_noticed() -> None:
    slabs = make()
    kept, address = slabs.alloc(), slabs.alloc()
    assert kept is not None
    assert address is not None
    slabs.free(address)
    with pytest.raises(AssertionError):
        slabs.free(address)
    with pytest.raises(AssertionError):
        slabs.free(kept + 1)


@pytest.mark.rule("memory.exact-undo")
@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from([1000, 300, 700, 1500]),
    st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=60),
)
def test_random_use_never_overlaps_and_is_undone_exactly(
    size: int, operations: list[tuple[bool, int]]
) -> None:
    pages = PageAllocator(11)
    slabs = SlabAllocator(pages, size, page_bytes=1000, max_order=2)
    live: list[int] = []
    for allocate, pick in operations:
        before = (pages.runs(), slabs.stats())
        if allocate:
            address = slabs.alloc()
            if address is None:
                assert slabs.available() == 0 or size > 1000 or slabs.capacity > 1
                continue
            slabs.free(address)
            assert (pages.runs(), slabs.stats()) == before
            assert slabs.alloc() == address
            live.append(address)
        elif live:
            address = live.pop(pick % len(live))
            slabs.free(address)
            slabs.claim(address)
            assert (pages.runs(), slabs.stats()) == before
            slabs.free(address)
        ordered = sorted(live)
        assert all(b - a >= size for a, b in itertools.pairwise(ordered))
        assert not ordered or ordered[-1] + size <= 11_000
        assert slabs.used == len(live)
        assert slabs.slab_pages() + pages.free_pages == 11
