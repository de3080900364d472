"""Attention of rows that share a beginning, against gathered float32 attention."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.shared_attention import (
    SharedRows,
    beginning_splits,
    members_of_tile,
    shared_attention,
)
from support.gpu import DEVICE, DTYPES, ON_GPU, TOLERANCE, poisoned, relative_error
from support.paged import BLOCK, DIM, LAYER, Cache, store

pytestmark = pytest.mark.torch


SHAPES = [(3, 1, 1), (4, 2, 4)]
"""Heads, key heads, splits: a group that fills no power of two, and several of everything."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "splits"), [*SHAPES, (3, 1, 4), (4, 2, 1)] if ON_GPU else SHAPES
)
def test_a_beginning_is_read_for_all_and_counted_once(
    dtype: torch.dtype, heads: int, kv_heads: int, splits: int
) -> None:
    cache = Cache(kv_heads, dtype, slots=6)
    # Slots 0 to 2 share three blocks and slots 3 and 4 one; slot 5 shares nothing.
    cache.table[1:3, :3] = cache.table[0, :3]
    cache.table[4, :1] = cache.table[3, :1]
    common = [3 * BLOCK] * 3 + [BLOCK] * 2 + [0]
    lengths = [3 * BLOCK + 1, 90, 64, 33, BLOCK + 1, 20]
    store(cache, heads, [(slot, 0, lengths[slot] - 1) for slot in (0, 3, 5)])
    own = [(slot, common[slot], lengths[slot] - 1) for slot in (1, 2, 4)]
    store(cache, heads, [run for run in own if run[1] < run[2]])
    last = [(slot, length - 1, length) for slot, length in enumerate(lengths)]
    _, qkv, slots, positions = store(cache, heads, last)
    count = members_of_tile(heads, kv_heads)
    members = torch.full((4, count), -1, dtype=torch.int32)
    members[0, :3] = torch.tensor([2, 0, 1])
    members[1, :2] = torch.tensor([3, 4])
    out = poisoned(6, heads * DIM, dtype=dtype)
    shared_attention(
        qkv,
        SharedRows(torch.tensor(common, dtype=torch.int32, device=DEVICE), members.to(DEVICE)),
        torch.arange(6, dtype=torch.int32, device=DEVICE),
        slots,
        positions,
        cache.table,
        cache.region,
        (
            poisoned(6, heads, splits, DIM, dtype=torch.float32),
            poisoned(6, heads, splits, dtype=torch.float32),
        ),
        out,
        layer=LAYER,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=DIM,
        block_tokens=BLOCK,
        splits=splits,
    )
    for row, length in enumerate(lengths):
        query = qkv[row : row + 1, : heads * DIM].view(1, heads, DIM)
        expected = reference.paged_attention(query, *cache.context(row, length), length - 1)
        got = out[row].view(1, heads, DIM)
        assert relative_error(got, expected) < 2 * TOLERANCE[dtype], f"slot {row}"


def test_splits_fill_the_device_and_stop() -> None:
    assert beginning_splits(16, 32, 8, 132) == 16
    assert beginning_splits(128, 32, 8, 132) == 4
    assert beginning_splits(256, 64, 8, 132) == 1
