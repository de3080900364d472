"""CacheBlockPool and SortedBlocks: one owner, order by last use."""

from __future__ import annotations

import pytest
from headrace_engine.cache.block import CacheBlock, LogicalBlock
from headrace_engine.cache.cache_pool import CacheBlockPool, SortedBlocks
from headrace_engine.memory.objects import ObjectAllocator, ObjectType, Part


def pool() -> tuple[CacheBlockPool, ObjectType]:
    objects = ObjectAllocator(region_bytes=1024, page_bytes=64)
    return CacheBlockPool(objects), objects.register([Part(64)])


@pytest.mark.rule("cache.unheld-by-age")
def test_slots_stand_in_the_order_in_which_they_were_let_go() -> None:
    _, kind = pool()
    order = SortedBlocks()
    made = [CacheBlock(kind, LogicalBlock(0, 4)) for _ in range(3)]
    for slot in made:
        order.add(slot)
    order.remove(made[0])
    order.add(made[0])
    assert list(order) == [made[1], made[2], made[0]]
    assert made[1].stamp < made[2].stamp < made[0].stamp
    with pytest.raises(AssertionError, match="twice"):
        order.add(made[0])


@pytest.mark.rule("blocks.one-owner")
def test_memory_belongs_to_one_slot_until_it_is_detached() -> None:
    slots, kind = pool()
    owner = LogicalBlock(0, 4)
    slot = CacheBlock(kind, owner)
    first, second = slots.objects.alloc(kind), slots.objects.alloc(kind)
    assert first is not None
    assert second is not None
    slots.attach(slot, first)
    assert slot.owner is owner
    with pytest.raises(AssertionError, match="memory already"):
        slots.attach(slot, second)
    assert slots.allocated == 1
    assert slots.detach(slot) is first
    with pytest.raises(AssertionError, match="no memory"):
        slots.detach(slot)
    assert slots.allocated == 0


def test_a_listed_slot_that_loses_its_memory_leaves_the_list() -> None:
    slots, kind = pool()
    slot = CacheBlock(kind, LogicalBlock(0, 4))
    allocation = slots.objects.alloc(kind)
    assert allocation is not None
    slots.attach(slot, allocation)
    slots.sorted.add(slot)
    slots.detach(slot)
    assert len(slots.sorted) == 0
