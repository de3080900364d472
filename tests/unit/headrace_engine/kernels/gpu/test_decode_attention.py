"""Decode attention over scattered blocks, cut into pieces, against gathered float32 attention."""

from __future__ import annotations

import math

import pytest
import torch
from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu import decode_attention, reference
from headrace_engine.kernels.gpu.decode_attention import DecodeAttention, cut_for
from support.gpu import DEVICE, DTYPES, TOLERANCE, poisoned, relative_error
from support.paged import BLOCK, DIM, LAYER, LAYERS, Cache, store

pytestmark = pytest.mark.torch


def attention_of(cache: Cache, heads: int, *, rows: int, processors: int = 1) -> DecodeAttention:
    return DecodeAttention(
        cache.region,
        rows=rows,
        layers=LAYERS,
        heads=heads,
        kv_heads=cache.kv_heads,
        head_dim=DIM,
        block_tokens=BLOCK,
        processors=processors,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 2)])
def test_every_row_sees_exactly_its_context(dtype: torch.dtype, heads: int, kv_heads: int) -> None:
    cache = Cache(kv_heads, dtype)
    lengths = {0: 1, 1: 16, 2: 140, 3: 33}
    store(cache, heads, [(slot, 0, n - 1) for slot, n in lengths.items()])
    _, qkv, slots, positions = store(cache, heads, [(s, n - 1, n) for s, n in lengths.items()])
    out, masses = poisoned(4, heads * DIM, dtype=dtype), poisoned(4, heads, dtype=torch.float32)
    attention = attention_of(cache, heads, rows=5)
    for _ in range(2):  # the second time finds what the first one left
        out.fill_(float("nan"))
        attention.plan(torch.arange(4, dtype=torch.int32, device=DEVICE), slots, positions)
        attention.attend(qkv, cache.table, out, rows=4, layer=LAYER, log_mass=masses)
    for row, (slot, length) in enumerate(lengths.items()):
        query = qkv[row : row + 1, : heads * DIM].view(1, heads, DIM)
        keys, values = cache.context(slot, length)
        expected = reference.paged_attention(query, keys, values, length - 1)
        got = out[row].view(1, heads, DIM)
        assert relative_error(got, expected) < 2 * TOLERANCE[dtype], f"slot {slot}"
        wide = keys.float().repeat_interleave(heads // kv_heads, 1)
        score = torch.einsum("hd,chd->hc", query[0].float(), wide) * DIM**-0.5
        mass = score.logsumexp(1) / math.log(2)
        assert torch.allclose(masses[row], mass, rtol=1e-2, atol=1e-2), f"slot {slot}"


@pytest.mark.parametrize("few_rows", [0, 16])
def test_a_row_may_begin_at_a_block_of_its_own(
    few_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_attention, "FEW_ROWS", few_rows)
    cache, heads, length = Cache(1, DTYPES[0]), 2, 100
    store(cache, heads, [(1, 0, length - 1)])
    _, qkv, slots, positions = store(cache, heads, [(1, length - 1, length)])
    out = poisoned(1, heads * DIM, dtype=DTYPES[0])
    attention = attention_of(cache, heads, rows=1)
    first = torch.full((1,), 3 * BLOCK, dtype=torch.int32, device=DEVICE)
    attention.plan(torch.zeros(1, dtype=torch.int32, device=DEVICE), slots, positions, first)
    attention.attend(qkv, cache.table, out, rows=1, layer=LAYER)
    keys, values = (part[3 * BLOCK :] for part in cache.context(1, length))
    query = qkv[:, : heads * DIM].view(1, heads, DIM)
    expected = reference.paged_attention(query, keys, values, length)
    assert relative_error(out.view(1, heads, DIM), expected) < 2 * TOLERANCE[DTYPES[0]]


def test_a_cache_of_more_lines_than_32_bits_count_is_refused() -> None:
    region = torch.empty(2**35, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ModelRejected, match=r"64\.0 GiB has 2,147,483,648 lines of head_dim 16"):
        DecodeAttention(
            region,
            rows=1,
            layers=1,
            heads=1,
            kv_heads=1,
            head_dim=16,
            block_tokens=16,
            processors=1,
        )


def test_pieces_are_as_large_as_keeps_the_device_even() -> None:
    assert [cut_for(rows, 8, 132).tokens for rows in (32, 64, 128, 256)] == [256, 512, 512, 1024]
    assert [cut_for(rows, 1, 132).most for rows in (17, 128)] == [64, 16]
