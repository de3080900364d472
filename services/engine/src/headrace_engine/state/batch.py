"""BatchData: what one pass asks of the executor, and what comes back.

Owner    engine thread until handed over, then executor thread, then engine thread again
Writes   engine: everything but ``output`` and ``error``; executor: ``output`` and ``error``
Never    owns sequences or blocks
Rules    batch.one-holder
Next     headrace_engine.executor.thread

Rows. A *row* is a place in a batch; generating rows come first, then rows that only
prefill. A *slot* is the number of a resident sequence in the executor's per-sequence
state (last sampled token, penalty counts), stable from activation to release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace_engine.state.request import MediaSpan

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]


def _no_int32() -> Int32:
    return np.zeros(0, np.int32)


def _no_int64() -> Int64:
    return np.zeros(0, np.int64)


class ResolvedCopy(NamedTuple):
    """A copy of whole bytes inside the region, planned by the scheduler."""

    source: int
    """Byte offset in the region."""
    target: int
    """Byte offset in the region."""
    size: int
    """Bytes."""


class SlotStart(NamedTuple):
    """A sequence that enters slot ``slot`` with this batch.

    The executor resets the slot's state: penalty counts from ``tokens`` (the prompt is
    ``tokens[:prompt_tokens]``, the rest was generated), sampling parameters, bias.
    """

    slot: int
    tokens: NDArray[np.int32]
    """Every token known to the host, int32[known]."""
    prompt_tokens: int
    choice: int
    sampling: SlotSampling
    media: tuple[MediaSpan, ...] = ()
    """Where images stand in the prompt."""
    state: tuple[int, ...] = ()
    """Byte offsets in the region of the parts of the sequence's recurrent state, where the model has
    one: the device reads it there before a row's first position and leaves it there after its last.
    A row that begins at position 0 begins with an empty state, whatever lies there."""


class SlotSampling(NamedTuple):
    """Per-slot sampling parameters; meanings as in ``state.request.Sampling``."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    bias_ids: tuple[int, ...]
    bias_values: tuple[float, ...]
    seed: int
    stop_token_ids: frozenset[int]
    min_new_tokens: int
    logprobs: int | None
    attempt: int
    """Only the echo executor reads it, so that a test can tell a token decided twice."""


@dataclass(slots=True)
class BatchOutput:
    """What the executor sampled: one token for each generating row."""

    tokens: Int32
    """int32[generating]."""
    failed: Bool
    """bool[generating]: the row's logits were not finite; its token means nothing."""
    chosen_logprobs: Float32 | None = None
    """float32[generating], from raw logits, where any row of the batch asked for logprobs."""
    top_ids: Int32 | None = None
    """int32[generating, width], most likely first; width is the largest any row asked for."""
    top_logprobs: Float32 | None = None
    """float32[generating, width]."""


@dataclass(slots=True)
class BatchData:
    """One pass. Ragged arrays are flat with cumulative offsets.

    Invariants
        len(slots) == len(begins) == len(lengths) == rows
        token_offsets[-1] == len(tokens) == sum(lengths)
        autoregressive[i] implies i < generating and lengths[i] == 1
        the block table of slots[i] covers positions 0 .. begins[i] + lengths[i]
    """

    pass_id: int
    phase: int
    """Which of the executor's buffer sets it may use, 0 .. phases - 1."""
    generating: int
    """The first ``generating`` rows sample one token, after their last position."""
    slots: Int32
    """int32[rows]."""
    begins: Int32
    """int32[rows]: position of the first token to run."""
    lengths: Int32
    """int32[rows]: tokens to run, at least 1."""
    autoregressive: Bool
    """bool[rows]: the input is the slot's last sampled token; ``tokens`` holds 0 there."""
    sample_indices: Int32
    """int32[generating]: index of the token to sample among the choice's generated ones, from 0."""
    tokens: Int32
    """int32[sum(lengths)]."""
    token_offsets: Int32
    """int32[rows + 1]."""
    store_from: Int32
    """int32[rows]: KV of positions below it must not be written (the blocks are shared and valid)."""
    table_slots: Int32 = field(default_factory=_no_int32)
    """int32[changes]: slot whose block table changes with this batch, before anything runs.

    The executor keeps ``table[slot, index]``; row i's blocks are the first
    ``ceil((begins[i] + lengths[i]) / block_tokens)`` of ``table[slots[i]]``. A slot that starts
    gets all of them, a running one what is new.
    """
    table_indices: Int32 = field(default_factory=_no_int32)
    """int32[changes]: position // block_tokens."""
    table_offsets: Int64 = field(default_factory=_no_int64)
    """int64[changes]: byte offset in the region."""
    starts: list[SlotStart] = field(default_factory=list[SlotStart])
    restores: list[ResolvedCopy] = field(default_factory=list[ResolvedCopy])
    """Done before anything else of the batch."""
    publishes: list[ResolvedCopy] = field(default_factory=list[ResolvedCopy])
    """Done after everything else of the batch."""
    output: BatchOutput | None = None
    error: BaseException | None = None
    """Set when the executor could not run the batch: nothing of it is valid."""

    @property
    def rows(self) -> int:
        """Rows of the batch."""
        return len(self.slots)
