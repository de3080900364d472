"""From a batch to what the decoder reads: positions stay implicit, last tokens come from slots.

Owner    executor thread
Writes   the table of blocks
Never    allocates per token
Rules    batch.one-holder
Next     headrace_engine.executor.sampler
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace_engine.model.decoder import ForwardInputs
from headrace_engine.state.batch import BatchData


class BlockTable:
    """Byte offsets of every slot's blocks, kept from batch to batch: ``offsets[slot, index]``."""

    def __init__(self, slots: int, sequence_tokens: int, block_tokens: int) -> None:
        self._width = -(-sequence_tokens // block_tokens)
        self._offsets: NDArray[np.int64] = np.zeros((slots, self._width), np.int64)

    def apply(self, batch: BatchData) -> None:
        """Takes over what the batch changes."""
        self._offsets[batch.table_slots, batch.table_indices] = batch.table_offsets

    def rows(self, slots: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """All offsets, flat, and where in them each slot's blocks begin."""
        return self._offsets.reshape(-1), slots * np.int32(self._width)


def prepare_inputs(
    batch: BatchData, table: BlockTable, last_tokens: NDArray[np.int32]
) -> ForwardInputs:
    """``last_tokens[slot]`` is the input of autoregressive rows."""
    tokens = batch.tokens.copy()
    rows = np.flatnonzero(batch.autoregressive)
    tokens[batch.token_offsets[rows]] = last_tokens[batch.slots[rows]]
    table.apply(batch)
    blocks, block_starts = table.rows(batch.slots)
    return ForwardInputs(
        tokens=tokens,
        offsets=batch.token_offsets,
        begins=batch.begins,
        blocks=blocks,
        block_starts=block_starts,
        store_from=batch.store_from,
        outputs=batch.token_offsets[1 : batch.generating + 1] - np.int32(1),
    )
