"""From a batch to what the decoder reads: positions stay implicit, last tokens come from slots.

Owner    executor thread
Writes   nothing but the tokens it fills in
Never    allocates per token
Rules    batch.one-holder
Next     headrace_engine.executor.sampler
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace_engine.model.decoder import ForwardInputs
from headrace_engine.state.batch import BatchData


def prepare_inputs(batch: BatchData, last_tokens: NDArray[np.int32]) -> ForwardInputs:
    """``last_tokens[slot]`` is the input of autoregressive rows."""
    tokens = batch.tokens.copy()
    rows = np.flatnonzero(batch.autoregressive)
    tokens[batch.token_offsets[rows]] = last_tokens[batch.slots[rows]]
    return ForwardInputs(
        tokens=tokens,
        offsets=batch.token_offsets,
        begins=batch.begins,
        blocks=batch.blocks,
        block_offsets=batch.block_offsets,
        store_from=batch.store_from,
        outputs=(batch.token_offsets[1 : batch.generating + 1] - 1).astype(np.int32),
    )
