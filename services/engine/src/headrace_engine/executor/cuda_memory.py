"""Where a GPU's memory goes: planned by category before the cache is made, measured afterwards.

Owner    whoever starts the executor
Writes   nothing
Never    allocates
Next     headrace_engine.executor.cuda
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Final

import torch
from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingTypeStubs]

from headrace_engine.errors import ModelRejected

GRAPH_BYTES: Final = 4 << 20
"""What one captured graph takes outside its memory pool, at most as far as we saw."""
LOADED_BYTES: Final = 96 << 20
"""What kernels and libraries take when a start first uses them, which the largest step did not: 70 MiB
was seen."""
_PINNED: Final = 8
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one device, by what they are for."""

    total: int
    """Of the card."""
    share: float
    """Of ``total`` that may be in use, by whomever."""
    workspace: int
    """The driver's context, kernels, the libraries' scratch, and other processes."""
    weights: int
    activations: int
    """Scratch of the largest step, sampling state, messages."""
    graphs: int
    """What replays of captured steps write to, and the graphs themselves."""
    cache: int = 0
    """The one region of KV blocks."""

    @property
    def room(self) -> int:
        """What the share leaves for the cache; below 0 where it leaves nothing."""
        used = self.workspace + self.weights + self.activations + self.graphs
        return int(self.total * self.share) - used

    def with_cache(self, size: int) -> MemoryPlan:
        """The plan for a region of ``size`` bytes."""
        return replace(self, cache=size)

    def told(self) -> dict[str, float]:
        """GiB by category, for the log."""
        return {
            name: round(value / _GIB, 3) if name != "share" else value
            for name, value in asdict(self).items()
        }

    def check(self, block_bytes: int) -> None:
        """Raises ModelRejected where not even two blocks fit, with every number and a way out."""
        if self.room >= 2 * block_bytes:
            return
        parts = ", ".join(
            f"{name} {getattr(self, name) / _GIB:.2f}"
            for name in ("weights", "activations", "graphs", "workspace")
        )
        raise ModelRejected(
            f"no memory is left for the KV cache: of {self.total / _GIB:.2f} GiB, "
            f"gpu_memory_utilization {self.share:g} admits {self.total * self.share / _GIB:.2f}, "
            f"and {parts} GiB are taken (workspace counts other processes too); "
            "lower max_batch or batch_tokens, raise gpu_memory_utilization, or take a smaller model"
        )


def measured(device: torch.device) -> tuple[int, int, int]:
    """Bytes of the card: all, in use by anybody, and held by torch in this process."""
    free, total = torch.cuda.mem_get_info(device)
    return total, total - free, torch.cuda.memory_reserved(device)


def keep_pinned(most: int) -> None:
    """Takes pinned host memory of every size up to ``most`` bytes, and gives it back to torch, which
    keeps it: what steps send then finds some, where asking the driver can wait for the device."""
    held: list[torch.Tensor] = []
    for power in range((most - 1).bit_length() + 1):
        held += [
            torch.empty(1 << power, dtype=torch.uint8, pin_memory=True) for _ in range(_PINNED)
        ]


@contextmanager
def allocating(category: str, device: torch.device, hint: str) -> Generator[None]:
    """Turns an out-of-memory error within into ModelRejected that names ``category``, and so with a
    kernel that wants more shared memory than the card has."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        total, used, own = measured(device)
        raise ModelRejected(
            f"the GPU's memory is used up at {category}: {used / _GIB:.2f} of {total / _GIB:.2f} GiB "
            f"are in use, {own / _GIB:.2f} by this engine; {hint}"
        ) from error
    except OutOfResources as error:
        raise ModelRejected(
            f"a kernel for this model does not fit the card: it wants {error.required} of "
            f"{error.name}, and the card has {error.limit}; take another card or another model"
        ) from error
