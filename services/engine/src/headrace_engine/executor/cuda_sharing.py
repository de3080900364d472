"""Which rows of a decode step begin with the same blocks, so that those can be read once.

Owner    executor thread
Writes   its copy of the block table, and the tensors that captured steps read
Never    looks at tokens; computes anew while the same slots run
Next     headrace_engine.kernels.gpu.shared_attention
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.kernels.gpu.shared_attention import SharedRows, members_of_tile
from headrace_engine.state.batch import BatchData

LEAST_ROWS: Final = 16
"""Rows of the smallest step for which sharing is looked at."""
LEAST_GROUP: Final = 4
"""Rows that share, at least: below that the neighbours' reads of one block meet in the L2 cache."""
_LONGEST_OWN: Final = 1024
"""Tokens that a row may have besides: one program reads them all."""


def tiles_of(rows: int, heads: int, kv_heads: int) -> int:
    """Tiles for which a step of ``rows`` rows has room: every group may leave one partly empty."""
    members = members_of_tile(heads, kv_heads)
    return 2 * -(-rows // members)


class Sharing:
    """Groups of rows with a common beginning, kept until other slots run."""

    def __init__(
        self,
        slots: int,
        rows: int,
        blocks: int,
        *,
        block_tokens: int,
        heads: int,
        kv_heads: int,
        device: torch.device,
    ) -> None:
        self._block_tokens = block_tokens
        self._heads, self._kv_heads = heads, kv_heads
        self._members = members_of_tile(heads, kv_heads)
        self._table = np.zeros((slots, blocks), np.int64)
        self._rows = rows
        self._shared = torch.zeros(rows, dtype=torch.int32, device=device)
        tiles = tiles_of(rows, heads, kv_heads)
        self._tiles = torch.full((tiles, self._members), -1, dtype=torch.int32, device=device)
        self._last: NDArray[np.int32] = np.zeros(0, np.int32)
        self._worth = False
        self._own_from: NDArray[np.int32] = np.zeros(0, np.int32)
        self._pinned = device.type == "cuda"

    def applied(self, batch: BatchData) -> None:
        """Takes over what the batch changes in the block tables. Before ``worth``, every batch."""
        self._table[batch.table_slots, batch.table_indices] = batch.table_offsets
        if batch.starts:
            self._last = np.zeros(0, np.int32)

    def rows(self, size: int) -> SharedRows:
        """The tensors for a captured step of ``size`` rows. What they hold changes in place."""
        tiles = tiles_of(size, self._heads, self._kv_heads)
        return SharedRows(self._shared[:size], self._tiles[:tiles])

    def worth(self, batch: BatchData, size: int) -> bool:
        """Whether the batch, of single tokens, shall run by ``rows(size)``, which then are its own."""
        if batch.rows < LEAST_ROWS:
            return False
        if not np.array_equal(batch.slots, self._last):
            self._last = batch.slots
            self._worth = self._find(batch, size)
        return self._worth and int((batch.begins - self._own_from).max()) < _LONGEST_OWN

    def _find(self, batch: BatchData, size: int) -> bool:
        whole = batch.begins // self._block_tokens
        # Only as deep as is looked at: whole rows of the table are long, and most of each is empty.
        tables = self._table[:, : max(1, int(whole.max()))][batch.slots]
        shared, groups = common_beginnings(tables, whole)
        shared *= self._block_tokens
        self._own_from = shared
        saved = sum(int(shared[group[0]]) * (len(group) - 1) for group in groups)
        if 2 * saved < int(batch.begins.sum()):
            return False
        tiles: list[NDArray[np.int32]] = []
        for group in groups:
            filled = np.full(-(-len(group) // self._members) * self._members, -1, np.int32)
            filled[: len(group)] = group
            tiles += list(filled.reshape(-1, self._members))
        room = tiles_of(size, self._heads, self._kv_heads)
        if len(tiles) > room:
            return False
        words = np.zeros(self._rows, np.int32)
        words[: len(shared)] = shared
        members = np.full((len(self._tiles), self._members), -1, np.int32)
        members[: len(tiles)] = tiles
        self._send(self._shared, words)
        self._send(self._tiles, members)
        return True

    def _send(self, target: Tensor, values: NDArray[np.int32]) -> None:
        source = torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
        target.copy_(source.pin_memory() if self._pinned else source, non_blocking=True)


def common_beginnings(
    tables: NDArray[np.int64], whole: NDArray[np.int32]
) -> tuple[NDArray[np.int32], list[NDArray[np.intp]]]:
    """Blocks that each row shares with its group, and the groups, as rows of ``tables``.

    ``tables[rows, blocks]`` are block offsets, of which the first ``whole[row]`` are full. Two rows
    with the same full block have the same beginning up to it. A group is of rows with one first block.
    """
    shared = np.zeros(len(tables), np.int32)
    groups: list[NDArray[np.intp]] = []
    _, kinds = np.unique(tables[:, 0], return_inverse=True)
    for kind in np.flatnonzero(np.bincount(kinds) >= LEAST_GROUP):
        group = np.flatnonzero((kinds == kind) & (whole > 0))
        if len(group) < LEAST_GROUP:
            continue
        depth = int(whole[group].min())
        alike = (tables[group, :depth] == tables[group[0], :depth]).all(0)
        common = depth if alike.all() else int(alike.argmin())
        shared[group] = common
        groups.append(group)
    return shared, groups
