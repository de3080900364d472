"""Cost model: seconds of a batch from what is in it. Given, or fitted to recorded batches.

Owner    nobody; frozen
Writes   nothing
Never    knows a device
Rules    simulate.deterministic
Next     headrace_engine.scheduler.simulate.simulator
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from headrace_engine.scheduler.journal_replay import Step


@dataclass(frozen=True, slots=True)
class CostModel:
    """Linear: each part in seconds. None below zero."""

    base_s: float = 0.004
    """Of any batch."""
    decode_row_s: float = 2e-5
    prefill_token_s: float = 4e-5
    context_token_s: float = 5e-9
    """Per position that a row attends to, over all rows."""

    def seconds(self, step: Step) -> float:
        """Time of one batch."""
        return (
            self.base_s
            + self.decode_row_s * step.decode_rows
            + self.prefill_token_s * step.prefill_tokens
            + self.context_token_s * step.context_tokens
        )


def fit(steps: Sequence[Step]) -> CostModel:
    """Least squares over recorded batches; a part that would come out negative is left out.

    Raises ``ValueError`` with fewer than 8 batches: four numbers cannot be told from those.
    """
    if len(steps) < 8:
        raise ValueError(f"{len(steps)} batches are too few to fit a cost model; 8 at least")
    features = np.array(
        [(1.0, s.decode_rows, s.prefill_tokens, s.context_tokens) for s in steps], np.float64
    )
    seconds = np.array([s.seconds for s in steps], np.float64)
    used = [i for i in range(4) if features[:, i].any()]
    while True:
        scale = features[:, used].max(axis=0)
        solved = cast("Any", np.linalg.lstsq(features[:, used] / scale, seconds, rcond=None))
        shares: list[float] = solved[0].tolist()
        if len(used) == 1 or min(shares) >= 0:
            break
        used.pop(shares.index(min(shares)))
    parts = [max(share, 0.0) / float(unit) for share, unit in zip(shares, scale, strict=True)]
    found = dict(zip(used, parts, strict=True))
    return CostModel(*(found.get(i, 0.0) for i in range(4)))
