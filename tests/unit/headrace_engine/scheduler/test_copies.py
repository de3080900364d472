"""Copies as the executor wants them: one for each part of an object."""

from __future__ import annotations

import pytest
from headrace_engine.cache.block import LogicalBlock
from headrace_engine.scheduler.copies import addresses_in_order, addresses_of, resolve_copy
from headrace_engine.state.batch import ResolvedCopy
from support.cache import CacheRig, content


@pytest.mark.rule("siblings.copied-before")
@pytest.mark.rule("blocks.bytes-are-opaque")
def test_a_block_is_copied_whole() -> None:
    rig = CacheRig()
    holder = rig.enter()
    first, second = rig.fill(holder, content(1, 2, 3, 4), content(5, 6, 7, 8))
    assert addresses_of(first) != addresses_of(second)
    assert resolve_copy(rig.pool, first, second) == [
        ResolvedCopy(addresses_of(first)[0], addresses_of(second)[0], 64)
    ]


def test_what_has_no_memory_is_not_copied() -> None:
    rig = CacheRig()
    holder = rig.enter()
    (first,) = rig.fill(holder, content(1, 2, 3, 4))
    empty: LogicalBlock = rig.pool.extend(holder)
    with pytest.raises(AssertionError, match="no memory"):
        resolve_copy(rig.pool, first, empty)


def test_a_table_has_what_has_memory_now() -> None:
    rig = CacheRig()
    first, second = rig.enter(), rig.enter()
    blocks = rig.fill(first, content(1, 2, 3, 4), content(5, 6, 7, 8), content(9, 9, 9, 9))
    rig.pool.share(second, blocks[:2])

    def memory(of: list[LogicalBlock]) -> list[int]:
        return [address for block in of if block.allocated for address in addresses_of(block)]

    for _ in range(2):
        assert addresses_in_order(first).tolist() == memory(blocks)
        assert addresses_in_order(second).tolist() == memory(blocks[:2])
    rig.objects.free(rig.pool.unpin(blocks[2]))
    blocks.append(rig.pool.extend(first))
    assert addresses_in_order(first).tolist() == memory(blocks[:2])
    for block in reversed(blocks[2:]):
        rig.give_memory(block)
    assert addresses_in_order(first).tolist() == memory(blocks)
    rig.leave(second)
    assert addresses_in_order(first).tolist() == memory(blocks)
    rig.audit()
