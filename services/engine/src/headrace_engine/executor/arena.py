"""The memory an executor holds for good: one region for cache blocks.

Owner    executor thread
Writes   its own memory
Never    grows after start
Rules    executor.nothing-allocated-after-start
Next     headrace_engine.executor.inputs
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray


def allocate_region(size: int) -> NDArray[np.uint8]:
    """``uint8[size]`` of zeroes, page-aligned, on huge pages where the system gives them.

    The system commits a page when it is first written, so a region larger than what is used
    costs address space only.
    """
    # Shared memory, which is Python's default, gets no huge pages.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)[:size]
