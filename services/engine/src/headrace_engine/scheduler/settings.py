"""Settings of the engine core, already checked: numbers only, no environment.

Owner    whoever holds it; frozen
Writes   nothing
Never    reads the environment; has a default that hides a mistake
Rules    sched.decode-first, sched.budget-is-not-memory
Next     headrace_engine.scheduler.scheduler
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What the scheduler may use. Raises ``ValueError``, with the numbers, if it cannot work."""

    max_batch: int = 64
    """Sequences that hold a slot at once."""
    max_waiting: int = 256
    """Sequences taken in beyond those in slots; the rest stays outside."""
    batch_tokens: int = 2048
    """Tokens of one batch when nothing decodes."""
    prefill_chunk_tokens: int = 256
    """Tokens of known context computed in a pass that also decodes, at most."""
    step_target_ms: float | None = None
    """Time that a pass which also decodes should take at most; the known context computed in it is
    sized so, between a block and ``prefill_chunk_tokens``. None: always ``prefill_chunk_tokens``."""
    step_tokens: int = 1
    """Batches run at multiples of this many tokens: one with known context and rows that decode is
    planned to fill such a size."""
    session_tokens: int = 2048
    """Positions of one sequence."""
    block_tokens: int = 16
    pool_blocks: int = 1024
    """Cache blocks in the region."""
    state_blocks: int = 0
    """Of them, those that the recurrent state of one sequence takes the place of; 0: it has none."""
    phases: int = 2
    """1: each batch is awaited. 2: one batch is planned while another runs."""
    prefix_cache: bool = True
    cache_prompt: Literal["all", "auto"] = "all"
    """all: others may also copy the prompt's last block, which is not full, and a recurrent state is
    kept at the prompt's end. auto: only where that block has a part of an image."""
    cache_generation: Literal["all", "auto", "none"] = "all"
    """What of the generated tokens stays in the cache. all: also the last block, which is not full,
    and the recurrent state there. auto: full blocks. none: nothing."""
    cache_prompt_boundary_skip: int = 1
    """Tokens before the prompt's end at which a recurrent state is kept: a prompt that is repeated
    begins there."""
    cache_checkpoint_interval: int = 4096
    """Tokens between two kept recurrent states of one sequence, at least."""
    plan_window: int = 32
    """Waiting sequences looked at in one pass."""
    quantum_passes: int = 16
    """Passes between two changes of the order of tenants."""
    tenant_weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Share of a tenant relative to others; 1 where it is not named."""
    ageing_s: float | None = None
    """After each such time a waiting sequence moves up a priority band. None: never."""
    audit: bool = False
    """Check every invariant in every pass. For tests."""
    cache_stats_interval_s: float = 1.0

    def __post_init__(self) -> None:
        counts = {
            "max_batch": self.max_batch,
            "max_waiting": self.max_waiting,
            "session_tokens": self.session_tokens,
            "step_tokens": self.step_tokens,
            "block_tokens": self.block_tokens,
            "pool_blocks": self.pool_blocks,
            "plan_window": self.plan_window,
            "quantum_passes": self.quantum_passes,
            "cache_prompt_boundary_skip": self.cache_prompt_boundary_skip,
            "cache_checkpoint_interval": self.cache_checkpoint_interval,
        }
        for name, value in counts.items():
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.cache_prompt not in ("all", "auto"):
            raise ValueError(f"cache_prompt is {self.cache_prompt!r}, not all or auto")
        if self.cache_generation not in ("all", "auto", "none"):
            raise ValueError(
                f"cache_generation is {self.cache_generation!r}, not all, auto or none"
            )
        if not 0 <= self.state_blocks < self.pool_blocks:
            raise ValueError(
                f"the recurrent state of one sequence takes {self.state_blocks} blocks of memory; "
                f"of {self.pool_blocks} that leaves none"
            )
        if self.phases not in (1, 2):
            raise ValueError(f"phases is {self.phases}; it must be 1 or 2")
        if self.prefill_chunk_tokens < self.block_tokens:
            raise ValueError(
                f"prefill_chunk_tokens is {self.prefill_chunk_tokens}, less than one block of "
                f"{self.block_tokens}: a long prompt could never advance"
            )
        if self.batch_tokens < self.max_batch + self.prefill_chunk_tokens:
            raise ValueError(
                f"batch_tokens is {self.batch_tokens}, less than max_batch ({self.max_batch}) + "
                f"prefill_chunk_tokens ({self.prefill_chunk_tokens})"
            )
        if self.step_target_ms is not None and not self.step_target_ms > 0:
            raise ValueError(f"step_target_ms is {self.step_target_ms}, not above 0")
        for tenant, weight in self.tenant_weights.items():
            if not weight > 0:
                raise ValueError(f"the weight of tenant {tenant!r} is {weight}, not above 0")

    @property
    def pool_tokens(self) -> int:
        """Positions that one sequence may have if it is alone."""
        return (self.pool_blocks - self.state_blocks) * self.block_tokens
