"""What every launch shares: programmatic dependent launch, and powers of two.

With dependent launch a kernel may start while its predecessor still runs. Each of our kernels
therefore waits before it reads what the kernel before it wrote, and before it writes. Before that
wait it may read constants (weights), and what is older: a kernel that waits and only then lets the
next one begin has seen the end of all that came before it, so what was written before such a kernel
may be read by those after it at once. ``decode_attention`` reads so.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import torch
from triton import knobs

DEPENDENT_LAUNCH: Final = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
"""Whether this device can launch a kernel before its predecessor has ended (sm_90 and later)."""

OPTIONS: Final[dict[str, bool]] = {"launch_pdl": True} if DEPENDENT_LAUNCH else {}
"""Keyword arguments of every launch."""


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least ``value``."""
    return 1 << (value - 1).bit_length()


def keep_kernels(folder: Path) -> None:
    """Compiled kernels are kept in ``folder``, unless TRITON_CACHE_DIR says where."""
    if not os.environ.get("TRITON_CACHE_DIR"):
        knobs.cache.dir = str(folder)
