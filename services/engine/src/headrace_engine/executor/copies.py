"""Copies of whole bytes inside the region.

Owner    executor thread
Writes   the region's bytes
Never    knows what the bytes mean
Rules    blocks.bytes-are-opaque
Next     headrace_engine.executor.inputs
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace_engine.state.batch import ResolvedCopy


def run_copies(region: NDArray[np.uint8], copies: Sequence[ResolvedCopy]) -> None:
    """Copies in order, so that a later copy may read what an earlier one wrote."""
    for copy in copies:
        region[copy.target : copy.target + copy.size] = region[
            copy.source : copy.source + copy.size
        ]
