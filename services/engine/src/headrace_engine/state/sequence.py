"""Sequence: the engine's life of one choice, and the columns of those that hold a slot.

Owner    engine thread
Writes   nothing by itself; the loop and the scheduler write these
Never    knows blocks, text or the wire
Rules    request.one-terminal-status, seq.release-when-idle, loop.columns
Next     headrace_engine.scheduler.scheduler
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from numpy.typing import NDArray

from headrace_engine.state.request import Request

LEAST_GROWN: Final = 256
"""Tokens that a sequence has room for once it grows: most short ones grow once."""


class Status(Enum):
    """Where a sequence is. It only goes forward, except RUNNING -> PAUSED -> WAITING."""

    WAITING = "waiting"
    """Holds no slot."""
    RUNNING = "running"
    """Holds a slot and is scheduled."""
    PAUSED = "paused"
    """Lost its place while a batch was in flight: keeps the slot until that comes back."""
    ENDED = "ended"
    """Its terminal status was told. Released once nothing of it is in flight."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.

    Invariants
        slot is set  iff  status is RUNNING or PAUSED, or ENDED with a batch in flight
        tokens[:length] are known and never change
        prompt_tokens <= length <= limit
    """

    request: Request
    choice: int
    number: int
    """Order of arrival over all sequences, from 1. Never reused."""
    tokens: NDArray[np.int32]
    """Grows by doubling; only ``tokens[:length]`` means anything."""
    length: int
    prompt_tokens: int
    limit: int
    """Positions it may reach: prompt + max_new_tokens, the context, or the pool."""
    limit_message: str
    """Why the limit is below prompt + max_new_tokens; empty if it is not."""
    arrived_s: float
    status: Status = Status.WAITING
    slot: int | None = None
    filled: int = 0
    """While it waits: positions whose KV committed passes wrote, as far as blocks still exist."""
    reached: int = 0
    """Most positions it ever had: what is computed below it again is recomputation."""
    trusted: int | None = None
    """While PAUSED: positions from here on were computed from poisoned blocks. None: all is well."""
    first_pass_s: float | None = None
    start_told: bool = False
    """Whether the outside knows of its first pass."""
    first_token_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    stop_ids: frozenset[int] = field(default=frozenset())
    end_reason: FinishReason | None = None
    end_code: Code | None = None

    def append(self, new: NDArray[np.int32]) -> None:
        """More tokens become known."""
        length, tokens = self.length, self.tokens
        end = length + len(new)
        if end > len(tokens):
            grown = np.empty(max(end, 2 * len(tokens), LEAST_GROWN), np.int32)
            grown[:length] = tokens[:length]
            self.tokens = tokens = grown
        tokens[length:end] = new
        self.length = end


class SequenceColumns:
    """Numbers of the sequences that hold a slot, one array element each, indexed by slot.

    A pass that only decodes works on these arrays and touches no Sequence.

    Invariants, for a slot in use
        planned < sampled   while RUNNING and something is left to plan
        known <= sampled <= known + inflight
        recent[slot, p - base] is the token at position p, for base == sequence.length <= p < known
    """

    __slots__ = ("_recent", "base", "capacity", "charged", "choice", "handle", "inflight", "known",
                 "limit", "live", "logprobs", "planned", "prompt", "recent", "sampled")  # fmt: skip

    def __init__(self, slots: int, block_tokens: int) -> None:
        def column() -> NDArray[np.int32]:
            return np.zeros(slots, np.int32)

        self.known = column()
        """Tokens the host knows."""
        self.planned = column()
        """Positions whose KV is written once everything handed over has run."""
        self.sampled = column()
        """Tokens there will be once everything handed over has run."""
        self.capacity = column()
        """Positions that have blocks with memory."""
        self.limit = column()
        self.prompt = column()
        self.inflight = column()
        """Batches handed over that contain it and have not come back."""
        self.charged = column()
        """Positions its tenant has paid for."""
        self.choice = column()
        self.logprobs = column()
        """Alternatives wanted beside the chosen token's logprob; -1: no logprobs wanted."""
        self.handle = np.zeros(slots, np.int64)
        self.live = np.zeros(slots, np.bool_)
        """Whether a result of it is wanted: not ended, nothing to discard."""
        self.base = column()
        """``Sequence.length``: tokens that have left ``recent``."""
        self.recent = np.zeros((slots, 2 * block_tokens), np.int32)
        """Tokens not yet in ``Sequence.tokens``; it is emptied when a block is full."""
        self._recent = self.recent.ravel()
        """The same memory: one index costs a tenth of two."""

    def enter(self, slot: int, sequence: Sequence) -> None:
        """A sequence takes a slot."""
        self.known[slot] = self.sampled[slot] = self.base[slot] = sequence.length
        self.limit[slot] = sequence.limit
        self.prompt[slot] = sequence.prompt_tokens
        self.handle[slot] = sequence.request.handle
        self.choice[slot] = sequence.choice
        wanted = sequence.request.sampling.logprobs
        self.logprobs[slot] = -1 if wanted is None else wanted
        self.inflight[slot] = 0
        self.live[slot] = True

    def put(
        self, slots: NDArray[np.intp], known: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> None:
        """One token more for each of these slots; ``known`` are their numbers of known tokens."""
        self._recent[slots * self.recent.shape[1] + (known - self.base[slots])] = tokens
        self.known[slots] = known + 1

    def flush_all(self, slots: NDArray[np.intp], sequences: list[Sequence]) -> None:
        """``flush`` for many: one read of the columns."""
        known = self.known[slots]
        recent, width = self._recent, self.recent.shape[1]
        begins: list[int] = (slots * width).tolist()
        counts: list[int] = known.tolist()
        for sequence, at, count in zip(sequences, begins, counts, strict=True):
            length, tokens = sequence.length, sequence.tokens
            if count <= len(tokens):
                tokens[length:count] = recent[at : at + count - length]
                sequence.length = count
            else:
                sequence.append(recent[at : at + count - length])
        self.base[slots] = known

    def flush(self, slot: int, sequence: Sequence) -> None:
        """Moves what is known to the sequence."""
        known = int(self.known[slot])
        count = known - sequence.length
        if count > 0:
            at = slot * self.recent.shape[1]
            sequence.append(self._recent[at : at + count])
            self.base[slot] = known
