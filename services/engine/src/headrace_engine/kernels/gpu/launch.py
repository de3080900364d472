"""What every launch shares: programmatic dependent launch, and powers of two.

With dependent launch a kernel may start while its predecessor still runs. Each of our kernels
therefore waits before it reads what the kernel before it wrote, and before it writes. Before that
wait it may read constants (weights), and what is older: a kernel that waits and only then lets the
next one begin has seen the end of all that came before it, so what was written before such a kernel
may be read by those after it at once. ``decode_attention`` reads so.
"""

from __future__ import annotations

from typing import Final

from headrace_engine.kernels.gpu.card import capability, shared_memory

DEPENDENT_LAUNCH: Final = capability() >= (9, 0)
"""Whether the card can launch a kernel before its predecessor has ended (sm_90 and later)."""

MEMORY: Final = shared_memory()
"""Bytes of shared memory that a program may have."""

OPTIONS: Final[dict[str, bool]] = {"launch_pdl": True} if DEPENDENT_LAUNCH else {}
"""Keyword arguments of every launch."""


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << (value - 1).bit_length()
