"""Decode attention over scattered blocks, cut into pieces, against gathered float32 attention."""

from __future__ import annotations

import pytest
import torch
from headrace_engine.errors import ModelRejected
from headrace_engine.kernels.gpu import decode_attention, reference
from headrace_engine.kernels.gpu.decode_attention import (
    FEW_ROWS,
    SPLITS,
    Cut,
    DecodeAttention,
    cut_for,
    most_pieces,
)
from support.gpu import DEVICE, DTYPES, ON_GPU, TOLERANCE, poisoned, relative_error
from support.paged import BLOCK, DIM, LAYER, LAYERS, Cache, store

pytestmark = pytest.mark.torch


def attention_of(cache: Cache, heads: int, *, rows: int) -> DecodeAttention:
    return DecodeAttention(
        cache.region,
        rows=rows,
        layers=LAYERS,
        heads=heads,
        kv_heads=cache.kv_heads,
        head_dim=DIM,
        block_tokens=BLOCK,
        processors=1,
    )


def three_programs(rows: int, kv_heads: int, processors: int) -> Cut:
    """So few programs and so small pieces that each takes several, and rows have up to four."""
    return Cut(tokens=32, most=4, programs=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 2)])
@pytest.mark.parametrize("few_rows", [0, FEW_ROWS], ids=["list", "few"])
def test_every_row_sees_exactly_its_context(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    few_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode_attention, "FEW_ROWS", few_rows)
    monkeypatch.setattr(decode_attention, "cut_for", three_programs)
    cache = Cache(kv_heads, dtype)
    lengths = {0: 1, 1: 16, 2: 130, 3: 33}
    store(cache, heads, [(slot, 0, n - 1) for slot, n in lengths.items()])
    _, qkv, slots, positions = store(cache, heads, [(s, n - 1, n) for s, n in lengths.items()])
    out = poisoned(4, heads * DIM, dtype=dtype)
    attention = attention_of(cache, heads, rows=5)
    queries = torch.tensor([2, 0, 3, 1], dtype=torch.int32, device=DEVICE)
    for _ in range(1 if few_rows else 2):  # a list finds what the one before it left
        out.fill_(float("nan"))
        attention.plan(queries, slots, positions)
        if ON_GPU:  # in a step a kernel lies between which waits for the plan
            torch.cuda.synchronize()
        attention.attend(qkv, cache.table, out, rows=4, layer=LAYER)
        for row, (slot, length) in enumerate(lengths.items()):
            query = qkv[row : row + 1, : heads * DIM].view(1, heads, DIM)
            keys, values = cache.context(slot, length)
            expected = reference.paged_attention(query, keys, values, length - 1)
            got = out[row].view(1, heads, DIM)
            assert relative_error(got, expected) < 2 * TOLERANCE[dtype], f"slot {slot}"


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
    assert [cut_for(rows, 8, 132).tokens for rows in (17, 32, 256)] == [512, 1024, 1024]
    assert cut_for(17, 2, 132).tokens == 256
    assert [cut_for(rows, 8, 132).programs for rows in (64, 128)] == [660, 528]
    assert [cut_for(rows, 1, 132).most for rows in (17, 128)] == [64, 16]


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("processors", [8, 108, 132, 142, 148])
def test_there_is_room_for_the_pieces_of_every_step(kv_heads: int, processors: int) -> None:
    for rows in (1, FEW_ROWS, 17, 24, 31, 32, 48, 64, 256):
        room = most_pieces(rows, kv_heads, processors)
        assert room >= min(rows, FEW_ROWS) * SPLITS
        for count in range(FEW_ROWS + 1, rows + 1):
            assert count * cut_for(count, kv_heads, processors).most <= room


def test_fewer_rows_than_the_most_may_have_more_pieces() -> None:
    assert (most_pieces(48, 1, 132), 48 * cut_for(48, 1, 132).most) == (1312, 768)
    assert most_pieces(64, 1, 132) == 1312
