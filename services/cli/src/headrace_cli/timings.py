"""Timings of streamed answers, and what they come to. Only arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer, as its reader saw it. Times are seconds on one monotonic clock."""

    sent_s: float
    arrivals_s: tuple[float, ...]
    """When each piece came; at least one."""
    tokens: int
    """Generated, by the server's own count."""

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces."""
        return [after - before for before, after in pairwise(self.arrivals_s)]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of the values do not exceed; NaN: none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def report(answers: Sequence[Answer], wall_s: float) -> str:
    """A table for a person."""
    tokens = sum(answer.tokens for answer in answers)
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    rows = [("first token", [answer.first_s for answer in answers]), ("between pieces", gaps)]
    lines = [
        f"{len(answers)} requests, {tokens} tokens out in {wall_s:.2f} s: "
        f"{tokens / wall_s:.1f} tokens/s",
        f"{'ms':16}{'p50':>9}{'p90':>9}{'p99':>9}{'most':>9}",
    ]
    for name, values in rows:
        cells = [percentile(values, share) * 1000 for share in (0.5, 0.9, 0.99, 1.0)]
        lines.append(f"{name:16}" + "".join(f"{cell:9.1f}" for cell in cells))
    return "\n".join(lines)
