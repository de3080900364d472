"""RoPE, KV writes and paged attention over scattered blocks, against gathered float32 attention."""

from __future__ import annotations

import random as rng
from dataclasses import dataclass, field

import pytest
import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.decode_attention import decode_attention, splits_for
from headrace_engine.kernels.gpu.prefill_attention import prefill_attention, tile_tokens
from headrace_engine.kernels.gpu.rope_store import rope_store
from support.gpu import DEVICE, DTYPES, TOLERANCE, poisoned, random, relative_error

pytestmark = pytest.mark.torch

LAYERS, LAYER, BLOCK, DIM = 2, 1, 16, 32


@dataclass
class Cache:
    """A region of NaN in which the blocks of a few slots lie scattered."""

    kv_heads: int
    dtype: torch.dtype
    slots: int = 4
    width: int = 12
    region: torch.Tensor = field(init=False)
    table: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        items = LAYERS * 2 * self.kv_heads * BLOCK * DIM
        places = list(range(self.slots * self.width))
        rng.Random(1).shuffle(places)
        self.region = poisoned(len(places) * items, dtype=self.dtype)
        table = torch.tensor(places, dtype=torch.int64).view(self.slots, self.width) * items
        self.table = table.to(DEVICE)

    def context(self, slot: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a slot's first ``length`` positions."""
        keys, values = reference.gather_blocks(
            self.region,
            self.table[slot, : -(-length // BLOCK)].tolist(),
            layer=LAYER,
            kv_heads=self.kv_heads,
            block_tokens=BLOCK,
            head_dim=DIM,
        )
        return keys[:length], values[:length]


def store(
    cache: Cache, heads: int, runs: list[tuple[int, int, int]], *, norms: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Runs ``rope_store`` for runs of (slot, first, end); returns qkv before and after, slots, positions."""
    slots = [slot for slot, first, end in runs for _ in range(first, end)]
    positions = [p for _, first, end in runs for p in range(first, end)]
    qkv = random(len(slots), (heads + 2 * cache.kv_heads) * DIM, dtype=cache.dtype, seed=len(slots))
    before = qkv.clone()
    slot_column = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
    position_column = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    blocks = cache.table[slot_column.long(), position_column.long() // BLOCK]
    targets = blocks + position_column.long() % BLOCK * DIM
    weights = (random(DIM, dtype=cache.dtype, seed=8), random(DIM, dtype=cache.dtype, seed=9))
    rope_store(
        qkv,
        rope_angles(cache.width * BLOCK),
        position_column,
        targets,
        weights if norms else None,
        cache.region,
        layer=LAYER,
        heads=heads,
        kv_heads=cache.kv_heads,
        block_tokens=BLOCK,
        epsilon=1e-6,
    )
    return before, qkv, slot_column, position_column


def rope_angles(positions: int) -> torch.Tensor:
    frequency = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    angles = torch.arange(positions)[:, None] * frequency
    return torch.stack([angles.cos(), angles.sin()], 1).float().to(DEVICE).contiguous()


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 1), (4, 2)])
def test_decode_attention_sees_exactly_its_context(
    dtype: torch.dtype, splits: int, heads: int, kv_heads: int
) -> None:
    cache = Cache(kv_heads, dtype)
    lengths = {0: 1, 1: 16, 2: 90, 3: 33}
    store(cache, heads, [(slot, 0, n - 1) for slot, n in lengths.items()])
    _, qkv, slots, positions = store(cache, heads, [(s, n - 1, n) for s, n in lengths.items()])
    out = poisoned(4, heads * DIM, dtype=dtype)
    decode_attention(
        qkv,
        torch.arange(4, dtype=torch.int32, device=DEVICE),
        slots,
        positions,
        cache.table,
        cache.region,
        (
            poisoned(4, heads, splits, DIM, dtype=torch.float32),
            poisoned(4, heads, splits, dtype=torch.float32),
        ),
        out,
        layer=LAYER,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=DIM,
        block_tokens=BLOCK,
        splits=splits,
    )
    for row, (slot, length) in enumerate(lengths.items()):
        query = qkv[row : row + 1, : heads * DIM].view(1, heads, DIM)
        expected = reference.paged_attention(query, *cache.context(slot, length), length - 1)
        got = out[row].view(1, heads, DIM)
        assert relative_error(got, expected) < 2 * TOLERANCE[dtype], f"slot {slot}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 1), (4, 1)])
def test_prefill_attention_is_causal_over_a_cached_prefix(
    dtype: torch.dtype, heads: int, kv_heads: int
) -> None:
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


def test_splits_fill_the_device_and_stop() -> None:
    assert splits_for(1, 8, 132) == 16
    assert splits_for(32, 8, 132) == 4
    assert splits_for(256, 8, 132) == 1
