"""Setup: turns a plan into a BatchData. Arrays only; no decision is made here.

Owner    engine thread
Writes   the new BatchData
Never    changes sequences, blocks or columns
Rules    batch.one-holder, batch.generating-first, loop.columns
Next     headrace_engine.executor.thread
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace_engine.scheduler.commit import Chunk, PassPlan
from headrace_engine.state.batch import BatchData, SlotSampling, SlotStart
from headrace_engine.state.sequence import Sequence, SequenceColumns


def setup_batch(plan: PassPlan, columns: SequenceColumns, *, phase: int) -> BatchData:
    """The batch of one committed plan: decodes, then chunks that sample, then the others."""
    decodes = len(plan.decode.slots)
    if not plan.chunks:
        return _decode_batch(plan, columns, phase)
    chunks = plan.chunks
    sampling = decodes + sum([chunk.generating for chunk in chunks])
    # One array for all, since each call of numpy costs more than what it does here.
    slots, begins, lengths, store_from, offsets = rows = _rows(decodes + len(chunks)).copy()
    rows[:2, :decodes] = plan.decode
    columned = [(c.sequence.slot, c.begin, c.end - c.begin, c.store_from) for c in chunks]
    rows[:4, decodes:-1] = list(zip(*columned, strict=True))
    offsets[decodes:] = list(accumulate([c.end - c.begin for c in chunks], initial=decodes))
    # What is sampled is the token behind a row's last position.
    sample_indices = begins[:sampling] + lengths[:sampling]
    sample_indices -= columns.prompt[slots[:sampling].astype(np.intp)]
    return BatchData(
        pass_id=plan.pass_id,
        phase=phase,
        generating=sampling,
        slots=slots[:-1],
        begins=begins[:-1],
        lengths=lengths[:-1],
        autoregressive=_autoregressive(decodes, decodes + len(chunks)),
        sample_indices=sample_indices,
        tokens=np.concatenate(
            [_constants(decodes).zeros, *[c.sequence.tokens[c.begin : c.end] for c in chunks]]
        ),
        token_offsets=offsets,
        store_from=store_from[:-1],
        table_slots=np.array(plan.table.slots, np.int32),
        table_indices=np.array(plan.table.indices, np.int32),
        table_offsets=np.array(plan.table.offsets, np.int64),
        starts=[slot_start(chunk) for chunk in chunks if chunk.starts],
        restores=plan.restores,
        publishes=plan.publishes,
    )


def _decode_batch(plan: PassPlan, columns: SequenceColumns, phase: int) -> BatchData:
    """One token for each row: what follows from that alone is not computed again."""
    slots, begins = plan.decode
    constant = _constants(len(slots))
    return BatchData(
        pass_id=plan.pass_id,
        phase=phase,
        generating=len(slots),
        slots=slots.astype(np.int32),
        begins=begins,
        lengths=constant.ones,
        autoregressive=constant.true,
        # What a decode runs is the token before the one that it samples.
        sample_indices=begins + 1 - columns.prompt[slots],
        tokens=constant.zeros,
        token_offsets=constant.offsets,
        store_from=constant.zeros,
        table_slots=np.array(plan.table.slots, np.int32),
        table_indices=np.array(plan.table.indices, np.int32),
        table_offsets=np.array(plan.table.offsets, np.int64),
        starts=[],
        restores=plan.restores,
        publishes=plan.publishes,
    )


class _Constants(NamedTuple):
    """Columns of a batch that only decodes. Batches share them, so they cannot be written."""

    zeros: NDArray[np.int32]
    ones: NDArray[np.int32]
    offsets: NDArray[np.int32]
    true: NDArray[np.bool_]


@lru_cache(maxsize=64)
def _constants(rows: int) -> _Constants:
    constants = _Constants(
        np.zeros(rows, np.int32),
        np.ones(rows, np.int32),
        np.arange(rows + 1, dtype=np.int32),
        np.ones(rows, np.bool_),
    )
    for column in constants:
        column.setflags(write=False)
    return constants


@lru_cache(maxsize=64)
def _rows(count: int) -> NDArray[np.int32]:
    """Slots, begins, lengths, where storing begins, and offsets of so many rows of one token."""
    rows = np.zeros((5, count + 1), np.int32)
    rows[2] = 1
    rows[4] = np.arange(count + 1)
    return rows


@lru_cache(maxsize=256)
def _autoregressive(decodes: int, rows: int) -> NDArray[np.bool_]:
    """The first rows decode."""
    column = np.arange(rows) < decodes
    column.setflags(write=False)
    return column


def slot_start(chunk: Chunk) -> SlotStart:
    """What the executor needs of a sequence that enters a slot."""
    sequence = chunk.sequence
    sampling = sequence.request.sampling
    return SlotStart(
        slot=_slot(sequence),
        # Known tokens never change and growing copies them, so a view can be given away.
        tokens=sequence.tokens[: sequence.length],
        prompt_tokens=sequence.prompt_tokens,
        choice=sequence.choice,
        media=sequence.request.media,
        state=chunk.state,
        sampling=SlotSampling._make((*_sampling_fields(sampling), sequence.request.attempt)),
    )


_sampling_fields = attrgetter(*SlotSampling._fields[:-1])
"""Of ``Sampling``, those that a slot has too."""


def _slot(sequence: Sequence) -> int:
    assert sequence.slot is not None
    return sequence.slot
