"""PassOutputs: what one pass tells the outside, flat.

Owner    engine thread makes it, signal thread gets it
Writes   nothing afterwards; frozen
Never    holds a sequence, a request, or a callback
Rules    outputs.flat
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from numpy.typing import NDArray

_NO_WAITS: Final[Mapping[str, float]] = {}


class SequenceUsage(NamedTuple):
    """What one choice cost."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_s: float
    """From push to the first pass."""
    prefill_s: float
    decode_s: float
    preemptions: int
    waits: Mapping[str, float] = _NO_WAITS
    """Seconds that it waited, by reason; they sum to ``queue_s`` and the time it was preempted."""


class RowEnd(NamedTuple):
    """The terminal status of row ``row``'s choice. Nothing follows it."""

    row: int
    reason: FinishReason
    usage: SequenceUsage
    code: Code | None = None
    message: str = ""
    spared: bool = False
    """Of an engine that failed: it did not break it, as far as the engine can tell."""


class RowStarted(NamedTuple):
    """Row ``row``'s choice ran in a pass for the first time."""

    row: int
    prompt_tokens: int
    cached_tokens: int
    queue_s: float


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Logprobs of row ``row``'s tokens of this pass."""

    row: int
    chosen: NDArray[np.float32]
    """float32[count]."""
    top_ids: NDArray[np.int32]
    """int32[count, width]."""
    top_values: NDArray[np.float32]
    """float32[count, width]."""


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """Rows of one pass. A row is one choice of one request.

    Invariants
        counts[i] in (0, 1), and 0 only where the row has a RowEnd or a RowStarted
    """

    pass_id: int
    handles: NDArray[np.int64]
    """RequestHandle of each row."""
    choices: NDArray[np.int32]
    firsts: NDArray[np.int32]
    """Index of the row's token among the choice's generated tokens (an earlier attempt's count too)."""
    counts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    """int32[sum(counts)]."""
    ends: list[RowEnd] = field(default_factory=list[RowEnd])
    starts: list[RowStarted] = field(default_factory=list[RowStarted])
    logprobs: list[RowLogprobs] = field(default_factory=list[RowLogprobs])
