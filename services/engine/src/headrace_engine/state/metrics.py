"""What the engine shows of itself: immutable snapshots, read from any thread.

Owner    whoever holds it
Writes   nothing: no snapshot changes
Never    costs more than one object per pass
Rules    metrics.one-snapshot
Next     headrace_engine.metrics
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace_engine.state.request import RequestHandle


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Where the blocks of the pool are, refreshed at most once per interval.

    Invariants
        free_blocks + cached_blocks + held_blocks + in_flight_blocks + state_blocks == total_blocks
    """

    total_blocks: int = 0
    free_blocks: int = 0
    """No memory behind them."""
    cached_blocks: int = 0
    """Hold content that no sequence holds: taken when memory is short."""
    held_blocks: int = 0
    """Held by a running or waiting sequence."""
    in_flight_blocks: int = 0
    """Held by ended sequences whose last batch has not come back."""
    indexed_blocks: int = 0
    """Nodes of the prefix trie, with or without memory."""
    block_tokens: int = 0
    state_blocks: int = 0
    """Blocks' worth of memory in which recurrent states lie, live and kept."""


@dataclass(frozen=True, slots=True)
class WaitingChoice:
    """Why one choice waited in the newest pass."""

    handle: RequestHandle
    reason: str
    """A ``Reason``."""
    detail: int


@dataclass(slots=True)
class ScheduleMetrics:
    """The engine after one pass. Totals count from the start of the engine.

    Nobody writes it once it is made. It is not ``frozen``, since that takes four times as long to
    make, and every pass makes one.
    """

    pass_id: int = 0
    """Counts passes; stands still with work resident only if the engine is wedged."""
    running: int = 0
    """Sequences that hold a slot and are scheduled."""
    waiting: int = 0
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sums to ``waiting``."""
    waits: Sequence[WaitingChoice] = ()
    """Of choices that wait, in the order in which they would run; of many, the first. Refreshed at
    most once per interval, like ``cache``."""
    retiring: int = 0
    """Ended sequences whose last batch has not come back."""
    slots: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    total_blocks: int = 0
    prompt_tokens: int = 0
    """Total prompt tokens of sequences that ran for the first time."""
    cached_tokens: int = 0
    """Total of those that were found in the prefix cache, to the token."""
    copied_tokens: int = 0
    """Total known tokens copied out of a block that is shared in part, instead of computed."""
    prefill_tokens: int = 0
    """Total tokens computed for known context, recomputation included."""
    decode_tokens: int = 0
    """Total tokens computed one at a time."""
    generated_tokens: int = 0
    """Total tokens delivered."""
    recomputed_tokens: int = 0
    """Total tokens computed again after a preemption."""
    preemptions: int = 0
    evictions: int = 0
    deferrals: int = 0
    """Times a sequence waited a pass because another was computing the same block."""
    finished: Mapping[str, int] = field(default_factory=dict[str, int])
    """Total ended choices by finish reason name, in lower case."""
    pass_tokens: int = 0
    """Tokens of the newest batch."""
    plan_s: float = 0.0
    """Host time of the newest pass from pop to hand over."""
    wait_s: float = 0.0
    """Time the newest pass waited for the executor."""
    update_s: float = 0.0
    """Host time of the newest pass after the executor's answer."""
    draining: bool = False
    cache: CacheStats = field(default_factory=CacheStats)
