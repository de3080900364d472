"""RoPE, KV writes and paged attention over scattered blocks, against gathered float32 attention."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.rope_store import rope_store
from support.gpu import DEVICE, DTYPES, TOLERANCE, random, relative_error
from support.paged import BLOCK, DIM, Cache, rope_angles, store

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norms", [False, True])
def test_keys_are_normed_rotated_and_stored_with_their_values(
    dtype: torch.dtype, norms: bool
) -> None:
    cache, heads = Cache(2, dtype), 4
    before, after, slots, positions = store(cache, heads, [(1, 0, 19), (3, 14, 18)], norms=norms)
    query, key, value = before.view(len(slots), -1, DIM).split([heads, 2, 2], 1)
    if norms:
        query = reference.rms_norm(query, random(DIM, dtype=dtype, seed=8), 1e-6)
        key = reference.rms_norm(key, random(DIM, dtype=dtype, seed=9), 1e-6)
    rope = rope_angles(cache.width * BLOCK)
    rotated = after.view(len(slots), -1, DIM)[:, :heads]
    assert relative_error(rotated, reference.rotate(query, rope, positions)) < TOLERANCE[dtype]
    keys, values = cache.context(1, 19)
    expected = reference.rotate(key, rope, positions)[:19]
    assert relative_error(keys, expected) < TOLERANCE[dtype]
    assert torch.equal(values, value[:19])
    tail, _ = cache.context(3, 18)
    assert tail[:14].isnan().all(), "positions before the run stay as they were"
    assert not tail[14:].isnan().any()


def test_a_negative_target_writes_nothing() -> None:
    cache = Cache(1, torch.float16)
    qkv = random(1, 3 * DIM, dtype=torch.float16)
    rope_store(
        qkv,
        rope_angles(16),
        torch.zeros(1, dtype=torch.int32, device=DEVICE),
        torch.full((1,), -1, dtype=torch.int64, device=DEVICE),
        None,
        cache.region,
        layer=0,
        heads=1,
        kv_heads=1,
        block_tokens=BLOCK,
        epsilon=1e-6,
    )
    assert cache.region.isnan().all()
