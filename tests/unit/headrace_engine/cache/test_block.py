"""LogicalBlock: positions, and predicates that are independent of each other."""

from __future__ import annotations

import numpy as np
import pytest
from headrace_engine.cache.block import CacheBlock, LogicalBlock, as_bytes
from headrace_engine.memory.objects import Allocation, ObjectType


@pytest.mark.rule("blocks.three-predicates")
def test_indexed_allocated_and_valid_are_three_things() -> None:
    block = LogicalBlock(offset=8, capacity=4)
    block.slot = CacheBlock(ObjectType(0), block)
    assert (block.indexed, block.allocated, block.valid) == (False, False, False)
    block.slot.allocation = Allocation(1, ObjectType(0), (64,))
    assert (block.indexed, block.allocated, block.valid) == (False, True, False)
    block.indexed = True
    block.slot.allocation = None
    assert (block.indexed, block.allocated, block.valid) == (True, False, False)
    assert block.end == 12


def test_a_root_has_no_slot_and_no_memory() -> None:
    root = LogicalBlock(offset=0, capacity=0)
    assert not root.allocated
    assert root.end == 0


def test_tokens_are_little_endian_on_every_machine() -> None:
    assert as_bytes(np.array([1, 258], ">i4").astype(np.int32)) == b"\1\0\0\0\2\1\0\0"
