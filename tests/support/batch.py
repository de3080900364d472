"""Small batches made by hand, for executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.state.batch import BatchData, SlotSampling, SlotStart


def limits(**changes: Any) -> ExecutorLimits:
    fields: dict[str, Any] = {
        "slots": 4,
        "batch_tokens": 64,
        "sequence_tokens": 64,
        "block_tokens": 4,
        "region_bytes": 64 * 64,
        "phases": 1,
    }
    fields.update(changes)
    return ExecutorLimits(**fields)


def slot_sampling(**changes: Any) -> SlotSampling:
    fields: dict[str, Any] = {
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "bias_ids": (),
        "bias_values": (),
        "seed": 0,
        "stop_token_ids": frozenset[int](),
        "min_new_tokens": 0,
        "logprobs": None,
        "attempt": 1,
    }
    fields.update(changes)
    return SlotSampling(**fields)


def decode_batch(
    pass_id: int,
    *,
    first: bool = False,
    prompt: Sequence[int] = (1, 2, 3),
    index: int | None = None,
    **sampling: Any,
) -> BatchData:
    """One row in slot 0. ``first``: the prompt and its first token, else one token more."""
    tokens = np.array(prompt, np.int32)
    begin = 0 if first else len(tokens) + pass_id
    length = len(tokens) if first else 1
    blocks = -(-(begin + length) // 4)
    start = SlotStart(0, tokens, len(tokens), 0, slot_sampling(**sampling))
    return BatchData(
        pass_id=pass_id,
        phase=0,
        generating=1,
        slots=np.zeros(1, np.int32),
        begins=np.array([begin], np.int32),
        lengths=np.array([length], np.int32),
        autoregressive=np.array([not first]),
        sample_indices=np.array([pass_id - 1 if index is None else index], np.int32),
        tokens=tokens if first else np.zeros(1, np.int32),
        token_offsets=np.array([0, length], np.int32),
        store_from=np.zeros(1, np.int32),
        table_slots=np.zeros(blocks, np.int32),
        table_indices=np.arange(blocks, dtype=np.int32),
        table_offsets=np.arange(blocks, dtype=np.int64) * 64,
        starts=[start] if first else [],
    )
