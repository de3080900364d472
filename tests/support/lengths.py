"""How long random tests are: short in every run, as long as one likes by hand."""

from __future__ import annotations

import os


def times(count: int) -> int:
    """``count`` of something random, times ``HEADRACE_TEST_TIMES`` where that is set."""
    return count * int(os.environ.get("HEADRACE_TEST_TIMES", "1"))
