"""A region of scattered cache blocks for kernel tests, filled by ``rope_store`` itself."""

from __future__ import annotations

import random as rng
from dataclasses import dataclass, field

import torch
from headrace_engine.kernels.gpu import reference
from headrace_engine.kernels.gpu.rope_store import rope_store
from support.gpu import DEVICE, poisoned, random

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
        offsets: list[int] = self.table[slot, : -(-length // BLOCK)].tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        keys, values = reference.gather_blocks(
            self.region,
            offsets,
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
