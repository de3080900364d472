"""The executor seam: what the loop needs of any device.

Owner    executor thread, from ``start`` to ``close``
Writes   the region's bytes, per-slot device state
Never    touches sequences, blocks, allocators
Rules    executor.no-device-above
Next     headrace_engine.executor.thread
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace_engine.state.batch import BatchData


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the scheduler and the card need to know of a loaded model."""

    name: str
    architecture: str
    vocabulary: int
    context_tokens: int
    """Longest sequence the weights support."""
    weights_version: str
    """Changes whenever the same prefix would give other KV."""
    kv_dtype: str
    kv_bytes_per_token: int
    """Bytes of one token's KV across all layers."""
    state_parts: tuple[int, ...] = ()
    """Bytes of each part of a sequence's recurrent state; empty for a model without one."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """What the engine promises never to exceed."""

    slots: int
    """Sequences resident at once."""
    batch_tokens: int
    """Tokens of one batch."""
    sequence_tokens: int
    """Positions of one sequence."""
    block_tokens: int
    region_bytes: int
    """Size of the one memory region that block offsets point into."""
    phases: int


def sequence_tokens(context_tokens: int, phases: int) -> int:
    """Positions of one sequence that block tables have room for: its context's, and as a margin one
    for each batch in flight. Batches name none of the margin: a sequence whose last wanted token is
    in flight is not planned again.
    """
    return context_tokens + phases


class Executor(Protocol):
    """A device. Calls come from the executor thread, and never two at once, with two exceptions.

    ``shape`` and ``block_bytes`` may be asked from anywhere. With two phases ``collect`` comes from
    a second thread, and ``submit`` of the next batch may come while it waits.
    """

    @property
    def shape(self) -> ModelShape:
        """Known once the object exists."""
        ...

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of one cache block of ``block_tokens`` tokens across all layers, aligned."""
        ...

    def start(self, limits: ExecutorLimits) -> None:
        """Allocates the region and everything else. Nothing is allocated for good afterwards."""
        ...

    def submit(self, batch: BatchData) -> None:
        """Queues the batch on the device: restores, forward, sampling, publishes.

        Returns when it is queued; a device that has no queue runs it here.
        """
        ...

    def collect(self, batch: BatchData) -> None:
        """Waits for a submitted batch, oldest first, and sets ``batch.output``."""
        ...

    def close(self) -> None:
        """Frees what ``start`` allocated, also after an error. ``start`` may follow.

        Weights go with the object: an engine that sleeps keeps it, or lets go of it.
        """
        ...


@runtime_checkable
class RoundsItsSteps(Protocol):
    """An executor that runs large batches at few sizes: what a batch lacks to the next one is wasted."""

    @property
    def step_tokens(self) -> int:
        """Tokens from one size to the next."""
        ...


@runtime_checkable
class MeasuresItsMemory(Protocol):
    """An executor whose device has memory of its own, which bounds the region."""

    def cache_room(self, limits: ExecutorLimits, share: float) -> int | None:
        """Bytes left for the region when ``share`` of the device's memory may be in use.

        Asked before ``start``; ``limits.region_bytes`` means nothing. None: nothing bounds it.
        Raises ModelRejected when nothing is left.
        """
        ...
