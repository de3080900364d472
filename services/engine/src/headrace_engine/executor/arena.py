"""The memory an executor holds for good: one region for cache blocks.

Owner    executor thread
Writes   its own memory
Never    grows after start
Rules    executor.nothing-allocated-after-start
Next     headrace_engine.executor.inputs
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace_engine.errors import ModelRejected

_LIMITS: Final = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Of a container, as it sees itself: control groups of both versions."""


def memory_limit(limits: Sequence[Path] = _LIMITS) -> int:
    """Bytes of memory that this machine has, or that its control group may use if that is less."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for file in limits:
        try:
            found = min(found, int(file.read_text()))
        except (OSError, ValueError):  # none there, or `max`
            continue
    return found


def allocate_region(size: int) -> NDArray[np.uint8]:
    """``uint8[size]`` of zeroes, page-aligned, on huge pages where the system gives them.

    The system commits a page when it is first written, so a region larger than what is used
    costs address space only. Raises ModelRejected for one that could never be filled.
    """
    memory_bytes = memory_limit()
    if size > memory_bytes:
        raise ModelRejected(
            f"a KV cache of {size / 2**30:.2f} GiB is larger than the {memory_bytes / 2**30:.2f} GiB "
            "of memory that this process may use: lower cache_bytes or cache_blocks"
        )
    # Shared memory, which is Python's default, gets no huge pages.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)[:size]
