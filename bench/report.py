"""What a bench prints beside its figures, and how it sums up times."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def commit() -> str:
    """What is measured: BENCH_COMMIT, or what git says; empty outside a repository."""
    asked = ["-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return os.environ.get("BENCH_COMMIT", "") or output_of("git", *asked)


def output_of(*command: str) -> str:
    """What a program prints; empty where it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def percentiles_ms(seconds: Sequence[float], shares: Mapping[str, float]) -> dict[str, float]:
    """Each share's place in the order of the times, in milliseconds."""
    ordered = sorted(seconds)
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000
        for name, share in shares.items()
    }
