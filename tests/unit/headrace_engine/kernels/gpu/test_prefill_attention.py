"""Attention of runs of tokens over scattered blocks, against gathered float32 attention."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.kernels.gpu import prefill_attention as module
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.prefill_attention import prefill_attention, stages_of, tile_tokens
from support.gpu import DEVICE, DTYPES, TOLERANCE, poisoned, relative_error
from support.paged import BLOCK, DIM, LAYER, Cache, store

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (4, 1)])
@pytest.mark.parametrize("tma", [False, True], ids=["pointers", "tma"])
def test_prefill_attention_is_causal_over_a_cached_prefix(
    dtype: torch.dtype, heads: int, kv_heads: int, tma: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TMA", tma)
    cache = Cache(kv_heads, dtype)
    cached = {0: 0, 1: 16, 2: 21}
    runs = [(0, 0, 70), (1, 16, 33), (2, 21, 22)]
    store(cache, heads, [(slot, 0, n) for slot, n in cached.items() if n])
    _, qkv, slots, positions = store(cache, heads, runs)
    step, tiles, token = tile_tokens(heads, kv_heads), [], 0
    for _, first, end in runs:
        for start in range(first, end, step):
            tiles.append([token + start - first, min(step, end - start)])
        token += end - first
    tiles.append([0, 0])  # room that this step does not use
    out = poisoned(len(slots), heads * DIM, dtype=dtype)
    prefill_attention(
        qkv,
        torch.tensor(tiles, dtype=torch.int32, device=DEVICE),
        slots,
        positions,
        cache.table,
        cache.region,
        out,
        layer=LAYER,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=DIM,
        block_tokens=BLOCK,
    )
    token = 0
    for slot, first, end in runs:
        here = slice(token, token + end - first)
        query = qkv[here, : heads * DIM].reshape(-1, heads, DIM)
        expected = reference.paged_attention(query, *cache.context(slot, end), first)
        got = out[here].view(-1, heads, DIM)
        assert relative_error(got, expected) < 2 * TOLERANCE[dtype], f"slot {slot}"
        token += end - first


def test_two_programs_fit_on_a_multiprocessor_with_tiles_ahead() -> None:
    # Queries, then keys and values of each tile, of 128 items of two bytes.
    for kib, stages in ((227, 5), (163, 3), (99, 3)):
        assert stages_of(64, 128, 64, 2, kib << 10) == stages
    held = (64 + 3 * 2 * 64) * 128 * 2
    assert 2 * held < 227 << 10
    assert stages_of(64, 64, 64, 2, 227 << 10) == stages_of(64, 128, 16, 2, 227 << 10) == 5
    assert stages_of(64, 128, 64, 4, 99 << 10) == 3
