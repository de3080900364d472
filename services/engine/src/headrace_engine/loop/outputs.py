"""OutputBuilder: gathers what one pass tells the outside into flat columns.

Owner    engine thread
Writes   its own lists
Never    keeps anything after ``take``
Rules    outputs.flat, request.one-terminal-status
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from numpy.typing import NDArray

from headrace_engine.state.batch import BatchOutput
from headrace_engine.state.outputs import (
    PassOutputs,
    RowEnd,
    RowLogprobs,
    RowStarted,
    SequenceUsage,
)
from headrace_engine.state.sequence import Sequence

_NO_ROWS64 = np.zeros(0, np.int64)
_NO_ROWS = np.zeros(0, np.int32)


@lru_cache(maxsize=256)
def _counts(rows: int, others: int) -> NDArray[np.int32]:
    """One token for each of the first rows, none for those behind. Outputs share it."""
    counts = np.zeros(rows + others, np.int32)
    counts[:rows] = 1
    counts.setflags(write=False)
    return counts


class OutputBuilder:
    """Token rows, set once as arrays; after them rows of those that only start or end.

    Invariants
        at most one row per choice
        a choice has at most one RowEnd, ever: ``end`` asserts it
    """

    def __init__(self) -> None:
        self._clear()

    def drop(self) -> list[tuple[int, int]]:
        """What was not taken is not told. Returns (handle, choice) of the ends among it.

        Who was to be told to have started has not been.
        """
        untold = [
            (int(self._handles[row]), int(self._choices[row]))
            if row >= 0
            else self._extra[-row - 1][:2]
            for row, *_ in self._ends
        ]
        for _, sequence, _ in self._starts:
            sequence.start_told = False
        self._clear()
        return untold

    def _clear(self) -> None:
        self._handles: NDArray[np.int64] = _NO_ROWS64
        self._choices: NDArray[np.int32] = _NO_ROWS
        self._firsts: NDArray[np.int32] = _NO_ROWS
        self._tokens: NDArray[np.int32] = _NO_ROWS
        self._rows: dict[int, int] = {}
        self._extra: list[tuple[int, int, int]] = []
        self._ends: list[tuple[int, FinishReason, SequenceUsage, Code | None, str, bool]] = []
        self._starts: list[tuple[int, Sequence, float]] = []
        self._logprobs: list[RowLogprobs] = []

    def set_tokens(
        self,
        handles: NDArray[np.int64],
        choices: NDArray[np.int32],
        firsts: NDArray[np.int32],
        tokens: NDArray[np.int32],
    ) -> None:
        """One token for each row. Called at most once before ``take``."""
        assert not len(self._tokens), "token rows set twice"
        self._handles, self._choices, self._firsts, self._tokens = handles, choices, firsts, tokens

    def place(self, sequence: Sequence, row: int) -> None:
        """Token row ``row`` is this sequence's: what else is said of it joins that row."""
        self._rows[sequence.number] = row

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        usage: SequenceUsage,
        code: Code | None,
        message: str,
        *,
        spared: bool = False,
    ) -> None:
        """The sequence's terminal status."""
        assert sequence.end_reason is None, "a second terminal status"
        sequence.end_reason, sequence.end_code = reason, code
        self._ends.append((self._row(sequence), reason, usage, code, message, spared))

    def end_unborn(self, handle: int, choice: int, code: Code, message: str) -> None:
        """The terminal status of a choice for which no sequence was made."""
        usage = SequenceUsage(0, 0, 0, 0.0, 0.0, 0.0, 0)
        row = self._new_row(handle, choice, 0)
        self._ends.append((row, FinishReason.ERROR, usage, code, message, False))

    def start(self, sequence: Sequence, queue_s: float) -> None:
        """The sequence ran for the first time."""
        sequence.start_told = True
        self._starts.append((self._row(sequence), sequence, queue_s))

    def logprobs(self, row: int, source_row: int, width: int, output: BatchOutput) -> None:
        """Logprobs of token row ``row``, from row ``source_row`` of the batch."""
        assert output.chosen_logprobs is not None
        chosen = output.chosen_logprobs[source_row : source_row + 1].copy()
        ids = np.zeros((1, 0), np.int32)
        values = np.zeros((1, 0), np.float32)
        if width and output.top_ids is not None and output.top_logprobs is not None:
            ids = output.top_ids[source_row : source_row + 1, :width].copy()
            values = output.top_logprobs[source_row : source_row + 1, :width].copy()
        self._logprobs.append(RowLogprobs(row, chosen, ids, values))

    def take(self, pass_id: int) -> PassOutputs | None:
        """Everything since the last call, or None if there is nothing to tell."""
        rows = len(self._tokens)
        if not rows and not self._extra:
            return None
        handles, choices, firsts = self._handles, self._choices, self._firsts
        if self._extra:
            more_handles, more_choices, more_firsts = zip(*self._extra, strict=True)
            handles = np.concatenate([handles, np.array(more_handles, np.int64)])
            choices = np.concatenate([choices, np.array(more_choices, np.int32)])
            firsts = np.concatenate([firsts, np.array(more_firsts, np.int32)])
        outputs = PassOutputs(
            pass_id=pass_id,
            handles=handles,
            choices=choices,
            firsts=firsts,
            counts=_counts(rows, len(self._extra)),
            tokens=self._tokens,
            ends=[
                RowEnd(row if row >= 0 else rows - row - 1, reason, usage, code, message, spared)
                for row, reason, usage, code, message, spared in self._ends
            ],
            starts=[self._started(row, rows, s, queue_s) for row, s, queue_s in self._starts],
            logprobs=self._logprobs,
        )
        self._clear()
        return outputs

    def _row(self, sequence: Sequence) -> int:
        row = self._rows.get(sequence.number)
        if row is None:
            first = sequence.length - sequence.prompt_tokens
            row = self._new_row(sequence.request.handle, sequence.choice, first)
            self._rows[sequence.number] = row
        return row

    def _new_row(self, handle: int, choice: int, first: int) -> int:
        """Extra rows count down from -1 until ``take`` knows how many token rows precede them."""
        self._extra.append((handle, choice, first))
        return -len(self._extra)

    @staticmethod
    def _started(row: int, token_rows: int, sequence: Sequence, queue_s: float) -> RowStarted:
        return RowStarted(
            row if row >= 0 else token_rows - row - 1,
            sequence.prompt_tokens,
            sequence.cached_tokens,
            queue_s,
        )
