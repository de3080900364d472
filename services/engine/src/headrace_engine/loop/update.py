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
from numpy import count_nonzero  # a third of what ``any`` and ``all`` take
from numpy.typing import NDArray

from headrace_engine.loop.lifecycle import Lifecycle
from headrace_engine.loop.outputs import OutputBuilder
from headrace_engine.scheduler.residents import Residents
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.sequence import Status


def update_batch(
    batch: BatchData,
    residents: Residents,
    lifecycle: Lifecycle,
    outputs: OutputBuilder,
    now_s: float,
) -> int:
    """Delivers a batch. Returns the tokens delivered.

    A row whose sequence has ended, or whose result is not to be believed, is dropped: that is the
    over-shoot of two phases.
    """
    assert batch.output is not None
    columns = residents.columns
    places = batch.slots.astype(np.intp)
    left = columns.inflight[places] - 1
    assert left.min(initial=0) >= 0, "a row came back twice"
    columns.inflight[places] = left
    slots = places[: batch.generating]
    failed = batch.output.failed
    if count_nonzero(failed):
        # Before tokens are given: who fails may have poisoned other rows of this very batch.
        lives = columns.live[slots]
        ended = [s for s in residents.at(slots[failed & ~lives]) if s.status is Status.ENDED]
        for sequence in residents.at(slots[failed & lives]):
            lifecycle.end(
                sequence,
                FinishReason.ERROR,
                now_s,
                code=Code.NUMERIC_FAILURE,
                message="the model's output was not finite",
            )
        for sequence in ended:
            lifecycle.disown(sequence, now_s)
    live = columns.live[slots]
    rows = None if count_nonzero(live) == len(live) else live.nonzero()[0]
    return _give_tokens(batch, batch.output, slots, rows, residents, lifecycle, outputs, now_s)


def _give_tokens(
    batch: BatchData,
    output: BatchOutput,
    slots: NDArray[np.intp],
    rows: NDArray[np.intp] | None,
    residents: Residents,
    lifecycle: Lifecycle,
    outputs: OutputBuilder,
    now_s: float,
) -> int:
    """``slots`` are those of the rows that sampled, ``rows`` those of them that are wanted; None: all.

    Returns how many.
    """
    columns = residents.columns
    continues = batch.autoregressive[: batch.generating]
    # The executor may use its arrays again, and outputs are given away.
    tokens = output.tokens.copy()
    if rows is not None:
        slots, tokens, continues = slots[rows], tokens[rows], continues[rows]
    known = columns.known[slots]
    firsts = known - columns.prompt[slots]
    columns.put(slots, known, tokens)
    outputs.set_tokens(columns.handle[slots], columns.choice[slots], firsts, tokens)
    if count_nonzero(continues) < len(continues):
        (firsts_at,) = (~continues).nonzero()
        found = residents.at(slots[firsts_at])
        for row, sequence in zip(firsts_at.tolist(), found, strict=True):
            if sequence.first_token_s is None:
                sequence.first_token_s = now_s
            if not sequence.start_told:  # it is told of this pass, with the token
                outputs.place(sequence, row)
    if output.chosen_logprobs is not None and lifecycle.logprobs_wanted:
        wanted = columns.logprobs[slots]
        for row in np.flatnonzero(wanted >= 0).tolist():
            source = row if rows is None else int(rows[row])
            outputs.logprobs(row, source, int(wanted[row]), output)
    full = known + 1 >= columns.limit[slots]
    # By an index of numpy's own kind: ``take``, and any other index, lets go of the interpreter.
    (ending,) = (full | (lifecycle.stop_tokens[tokens.astype(np.intp)] > 0)).nonzero()
    for row, sequence in zip(ending.tolist(), residents.at(slots[ending]), strict=True):
        token, index = int(tokens[row]), int(firsts[row])
        stops = token in sequence.stop_ids
        if stops and index >= sequence.request.sampling.min_new_tokens:
            outputs.place(sequence, row)
            lifecycle.end(sequence, FinishReason.STOP, now_s)
        elif full[row]:
            outputs.place(sequence, row)
            lifecycle.end(sequence, FinishReason.LENGTH, now_s, message=sequence.limit_message)
    return len(slots)
