"""Batches become decoder inputs."""

from __future__ import annotations

import numpy as np
from headrace_engine.executor.inputs import BlockTable, prepare_inputs
from headrace_engine.state.batch import BatchData


def int32(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def test_last_tokens_blocks_and_outputs_come_from_slots() -> None:
    table = BlockTable(slots=3, sequence_tokens=48, block_tokens=16)
    batch = BatchData(
        pass_id=1,
        phase=0,
        generating=2,
        slots=int32(2, 0, 1),
        begins=int32(20, 0, 4),
        lengths=int32(1, 3, 2),
        autoregressive=np.array([True, False, False]),
        sample_indices=int32(4, 0),
        tokens=int32(0, 7, 8, 9, 5, 6),
        token_offsets=int32(0, 1, 4, 6),
        store_from=int32(0, 0, 0),
        table_slots=int32(2, 0, 2, 1),
        table_indices=int32(0, 0, 1, 0),
        table_offsets=np.array([640, 128, 256, 512], np.int64),
    )
    inputs = prepare_inputs(batch, table, int32(11, 12, 13))
    assert inputs.tokens.tolist() == [13, 7, 8, 9, 5, 6]
    assert batch.tokens[0] == 0, "the batch itself is left alone"
    assert inputs.outputs.tolist() == [0, 3]
    assert inputs.blocks[inputs.block_starts[0]] == 640
    assert inputs.blocks[inputs.block_starts[0] + 1] == 256
    assert inputs.blocks[inputs.block_starts[1]] == 128
    assert inputs.blocks[inputs.block_starts[2]] == 512
