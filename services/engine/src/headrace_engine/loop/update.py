"""Update: takes a finished batch, gives each row its token, finds who has ended.

Owner    engine thread
Writes   SequenceColumns; ends through Lifecycle
Never    touches a Sequence whose row only continues
Rules    loop.overshoot-dropped, request.one-terminal-status, cache.poison-spreads, loop.columns
Next     headrace_engine.intake.gateway
"""

from __future__ import annotations

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from numpy.typing import NDArray

from headrace_engine.loop.lifecycle import Lifecycle
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.scheduler.residents import Residents
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.sequence import Sequence


def update_batch(
    batch: BatchData,
    started: list[Sequence],
    residents: Residents,
    lifecycle: Lifecycle,
    outputs: OutputBuilder,
    now_s: float,
) -> int:
    """Delivers a batch. Returns the tokens delivered.

    ``started`` ran for the first time in a batch that was handed over, this one or the next. A
    row whose sequence has ended, or whose result is not to be believed, is dropped: that is the
    over-shoot of two phases.
    """
    assert batch.output is not None
    columns = residents.columns
    left = columns.inflight[batch.slots] - 1
    assert left.min(initial=0) >= 0, "a row came back twice"
    columns.inflight[batch.slots] = left
    slots = batch.slots[: batch.generating]
    failed = batch.output.failed
    if failed.any():
        # Before tokens are given: who fails may have poisoned other rows of this very batch.
        for sequence in residents.at(slots[failed & columns.live[slots]]):
            lifecycle.end(
                sequence,
                FinishReason.ERROR,
                now_s,
                code=Code.NUMERIC_FAILURE,
                message="the model's output was not finite",
            )
    rows = np.flatnonzero(columns.live[slots])
    _give_tokens(batch, batch.output, rows, started, residents, lifecycle, outputs, now_s)
    return len(rows)


def _give_tokens(
    batch: BatchData,
    output: BatchOutput,
    rows: NDArray[np.intp],
    started: list[Sequence],
    residents: Residents,
    lifecycle: Lifecycle,
    outputs: OutputBuilder,
    now_s: float,
) -> None:
    columns = residents.columns
    slots, continues = batch.slots, batch.autoregressive
    # The executor may use its arrays again, and outputs are given away.
    tokens = output.tokens.copy()
    if len(rows) < len(slots):
        slots, tokens, continues = slots[rows], tokens[rows], continues[rows]
    known = columns.known[slots]
    firsts = known - columns.prompt[slots]
    columns.recent[slots, known - columns.base[slots]] = tokens
    columns.known[slots] = known + 1
    outputs.set_tokens(columns.handle[slots], columns.choice[slots], firsts, tokens)
    if started:
        _place_started(slots, started, outputs)
    if not continues.all():
        for sequence in residents.at(slots[~continues]):
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
    if output.chosen_logprobs is not None and lifecycle.logprobs_wanted:
        wanted = columns.logprobs[slots]
        for row in np.flatnonzero(wanted >= 0).tolist():
            outputs.logprobs(row, int(rows[row]), int(wanted[row]), output)
    full = known + 1 >= columns.limit[slots]
    ending = np.flatnonzero(full | lifecycle.stop_tokens[tokens].astype(np.bool_))
    for row, sequence in zip(ending.tolist(), residents.at(slots[ending]), strict=True):
        token, index = int(tokens[row]), int(firsts[row])
        stops = token in sequence.stop_ids
        if stops and index >= sequence.request.sampling.min_new_tokens:
            outputs.place(sequence, row)
            lifecycle.end(sequence, FinishReason.STOP, now_s)
        elif full[row]:
            outputs.place(sequence, row)
            lifecycle.end(sequence, FinishReason.LENGTH, now_s, message=sequence.limit_message)


def _place_started(
    slots: NDArray[np.int32], started: list[Sequence], outputs: OutputBuilder
) -> None:
    for sequence in started:
        found = np.flatnonzero(slots == sequence.slot) if sequence.slot is not None else ()
        for row in found:
            outputs.place(sequence, int(row))
