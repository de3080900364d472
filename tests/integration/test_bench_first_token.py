"""The bench of first tokens runs on any machine, and its figures are those of each workload."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench/first_token.py"


@pytest.mark.timeout(120)
def test_every_workload_has_its_figures() -> None:
    flags = ("--repeats", "1", "--step-ms", "0", "--token-us", "0", "--launches", "1")
    done = subprocess.run(
        [sys.executable, str(BENCH), *flags],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert list(result["us"]) == ["one-128", "one-8192", "many", "stream", "floor"]
    for name, figures in result["us"].items():
        assert figures["before"] > 0, name
        assert figures["after"] > 0, name
        # What the device waits for between batches, of which one prompt has none.
        assert figures["idle"] == 0 or name in ("many", "stream")
