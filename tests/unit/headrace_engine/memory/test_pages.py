"""PageAllocator: buddies merge, nothing overlaps, what is undone leaves no trace."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from headrace_engine.memory.pages import PageAllocator, RunSet
from hypothesis import given, settings


def test_runs_are_aligned_to_their_length_and_the_lowest_is_taken() -> None:
    pages = PageAllocator(8)
    assert pages.alloc(0) == 0
    assert pages.alloc(1) == 2
    assert pages.alloc(0) == 1
    assert pages.alloc(2) == 4
    assert pages.alloc(0) is None
    assert pages.free_pages == 0


def test_a_count_that_is_no_power_of_two_is_used_whole() -> None:
    pages = PageAllocator(13)
    assert pages.runs() == [[12], [], [8], [0]]
    assert [pages.alloc(0) for _ in range(13)].count(None) == 0
    assert pages.alloc(0) is None


@pytest.mark.rule("memory.coalesce")
def test_after_everything_is_freed_the_runs_are_those_of_the_start() -> None:
    pages = PageAllocator(13)
    taken = [pages.alloc(0) for _ in range(13)]
    for start in taken[::2] + taken[1::2]:
        assert start is not None
        pages.free(start, 0)
    assert pages.coalesced()


def test_a_run_freed_twice_is_noticed() -> None:
    pages = PageAllocator(4)
    start = pages.alloc(0)
    assert start is not None
    pages.free(start, 0)
    with pytest.raises(AssertionError):
        pages.free(start, 0)


def test_claiming_pages_that_are_not_free_is_noticed() -> None:
    pages = PageAllocator(4)
    pages.alloc(1)
    with pytest.raises(AssertionError):
        pages.claim(0, 0)


def test_a_region_without_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PageAllocator(0)


@pytest.mark.rule("memory.exact-undo")
@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 37),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 50)), max_size=60),
)
def test_random_use_never_overlaps_and_is_undone_exactly(
    count: int, operations: list[tuple[bool, int, int]]
) -> None:
    pages = PageAllocator(count)
    live: list[tuple[int, int]] = []
    for allocate, order, pick in operations:
        before = pages.runs()
        if allocate:
            start = pages.alloc(order)
            if start is None:
                assert all(not runs for runs in before[order:])
                continue
            assert start % (1 << order) == 0
            pages.free(start, order)
            assert pages.runs() == before, "allocating and freeing left a trace"
            assert pages.alloc(order) == start
            live.append((start, order))
        elif live:
            start, order = live.pop(pick % len(live))
            pages.free(start, order)
            pages.claim(start, order)
            assert pages.runs() == before, "freeing and claiming left a trace"
            pages.free(start, order)
        used = [p for start, order in live for p in range(start, start + (1 << order))]
        free = [
            p
            for order, runs in enumerate(pages.runs())
            for start in runs
            for p in range(start, start + (1 << order))
        ]
        assert sorted(used + free) == list(range(count))
        assert pages.free_pages == len(free)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 3000), st.lists(st.integers(0, 2999), max_size=40), st.integers(0, 3001))
def test_many_pages_at_once_are_those_that_single_calls_would_take(
    count: int, held: list[int], wanted: int
) -> None:
    at_once, one_by_one = PageAllocator(count), PageAllocator(count)
    for page in set(held):
        if page < count:
            at_once.claim(page, 0)
            one_by_one.claim(page, 0)
    singles = [one_by_one.alloc(0) for _ in range(wanted)]
    assert at_once.alloc_pages(wanted) == [page for page in singles if page is not None]
    assert at_once.runs() == one_by_one.runs()
    assert at_once.free_pages == one_by_one.free_pages


def test_the_least_run_is_found_across_words_of_the_mask() -> None:
    runs = RunSet(5000)
    for member in (4999, 2048, 1023, 1024):
        runs.add(member)
    assert runs.members() == [1023, 1024, 2048, 4999]
    assert 1024 in runs
    assert 1025 not in runs
    assert [runs.pop_least(), runs.pop_least()] == [1023, 1024]
    runs.remove(4999)
    assert runs.members() == [2048]
    assert runs != RunSet(5000)
    assert runs.pop_least() == 2048
    assert runs == RunSet(5000)
    assert not runs.summary
