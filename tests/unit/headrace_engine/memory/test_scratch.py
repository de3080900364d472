"""Trial: undone to a mark, the allocator is what it was."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from headrace_engine.memory.objects import Allocation, ObjectAllocator, Part
from headrace_engine.memory.scratch import Trial
from hypothesis import given, settings

Operation = tuple[bool, int, int]


def picture(objects: ObjectAllocator) -> object:
    return (objects.pages.runs(), objects.stats(), objects.live)


def apply(
    trial: Trial, live: list[Allocation], operations: list[Operation], types: list[int]
) -> None:
    for allocate, kind, pick in operations:
        if allocate:
            allocation = trial.alloc(types[kind])  # pyright: ignore[reportArgumentType]
            if allocation is not None:
                live.append(allocation)
        elif live:
            trial.free(live.pop(pick % len(live)))


OPERATIONS = st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 99)), max_size=40)


@pytest.mark.rule("memory.exact-undo")
@pytest.mark.rule("sched.trial-equals-outcome")
@settings(deadline=None, max_examples=150)
@given(OPERATIONS, OPERATIONS, OPERATIONS)
def test_what_is_undone_leaves_no_trace_and_what_is_kept_stays(
    before: list[Operation], kept: list[Operation], undone: list[Operation]
) -> None:
    objects = ObjectAllocator(region_bytes=11 * 1024, page_bytes=1024)
    types = [
        objects.register([Part(1024)]),
        objects.register([Part(300)]),
        objects.register([Part(1500), Part(300, count=2)]),
    ]
    live: list[Allocation] = []
    apply(Trial(objects), live, before, [int(t) for t in types])
    trial = Trial(objects)
    apply(trial, live, kept, [int(t) for t in types])
    mark, picture_kept, live_kept = trial.mark(), picture(objects), list(live)
    apply(trial, live, undone, [int(t) for t in types])
    trial.undo_to(mark)
    assert picture(objects) == picture_kept
    assert all(objects.is_live(a) for a in live_kept)
    objects.audit()
    for allocation in live_kept:
        objects.free(allocation)
    assert objects.pages.coalesced()


def test_marks_nest() -> None:
    objects = ObjectAllocator(region_bytes=4096, page_bytes=1024)
    block = objects.register([Part(1024)])
    trial = Trial(objects)
    first = trial.alloc(block)
    mark = trial.mark()
    trial.alloc(block)
    inner = trial.mark()
    trial.alloc(block)
    trial.undo_to(inner)
    assert objects.live == 2
    trial.undo_to(mark)
    assert objects.live == 1
    assert first is not None
    assert objects.is_live(first)
