"""CacheRegistry: model parts say what a block holds; each category becomes one object type."""

from __future__ import annotations

import pytest
from headrace_engine.cache.registry import CacheRegistry, piece_bytes, state_blocks
from headrace_engine.memory.objects import ObjectAllocator


def objects() -> ObjectAllocator:
    return ObjectAllocator(region_bytes=1 << 16, page_bytes=1024)


@pytest.mark.rule("cache.one-object-per-block")
def test_all_layers_of_a_block_are_one_contiguous_object() -> None:
    registry = CacheRegistry(align=64)
    assert [registry.add_prefix(100) for _ in range(3)] == [0, 128, 256]
    region = objects()
    layout = registry.close(region)
    assert layout.checkpoint is None
    allocation = region.alloc(layout.prefix)
    assert allocation is not None
    assert len(allocation.addresses) == 1
    assert region.stats()[0].object_bytes == 384


def test_a_checkpoint_is_one_object_of_all_its_parts() -> None:
    registry = CacheRegistry(align=64)
    registry.add_prefix(64)
    assert registry.add_checkpoint_parts(200, 3) == 0
    assert registry.add_checkpoint_parts(100, 2) == 3
    region = objects()
    layout = registry.close(region)
    assert layout.checkpoint is not None
    allocation = region.alloc(layout.checkpoint)
    assert allocation is not None
    assert len(allocation.addresses) == 5


def test_nothing_is_registered_after_the_end() -> None:
    registry = CacheRegistry()
    registry.add_prefix(64)
    registry.close(objects())
    with pytest.raises(AssertionError, match="ended"):
        registry.add_prefix(64)
    with pytest.raises(AssertionError, match="ended"):
        registry.add_checkpoint_parts(64, 1)


def test_a_model_without_cache_bytes_and_a_size_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="no part"):
        CacheRegistry().close(objects())
    with pytest.raises(ValueError, match="cannot register"):
        CacheRegistry().add_prefix(0)


@pytest.mark.parametrize(
    ("size", "page", "piece"), [(1, 256, 64), (64, 256, 64), (65, 256, 128), (129, 256, 256),
                                (1, 192, 192), (64, 384, 192), (96, 64 * 3 * 4, 192)]
)  # fmt: skip
def test_parts_of_a_state_are_rounded_to_a_page_divided_by_two_again_and_again(
    size: int, page: int, piece: int
) -> None:
    assert piece_bytes(size, page) == piece


def test_a_state_takes_whole_pages_for_parts_of_each_size() -> None:
    assert state_blocks((), 256) == 0
    assert state_blocks((64,) * 4, 256) == 1
    assert state_blocks((64,) * 5, 256) == 2
    assert state_blocks((64, 256, 100), 256) == 3
    with pytest.raises(ValueError, match="257 bytes, more than the 256"):
        state_blocks((257,), 256)
