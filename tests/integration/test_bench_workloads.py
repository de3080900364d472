"""The workload bench runs on any machine, and its prompts are what its seeds say."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench/workloads.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(BENCH.parent))  # as when it runs by itself
    spec = importlib.util.spec_from_file_location("bench_workloads", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_workloads"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(280)
def test_every_workload_ends_with_its_figures_as_json() -> None:
    names = ["w1", "w2", "w3", "w4-32", "w5", "w6", "w6-http"]
    done = subprocess.run(
        [sys.executable, str(BENCH), "--executor", "echo", "--repeats", "2", "--workload", *names],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (result["size"], list(result["workloads"])) == ("small", names)
    for name, workload in result["workloads"].items():
        assert len(workload["repeats"]) == 2
        cached = workload["median"].get("cached_tokens", 0)
        # Only the shared prefix may be found again.
        assert (cached > 0) == (name == "w5"), name


def test_the_mixed_workload_has_the_known_number_of_tokens(bench: ModuleType) -> None:
    prompts, outputs = bench.mixed(bench.FULL, 0)
    assert (len(prompts), sum(outputs)) == (256, 133_966)
    shifted, same = bench.mixed(bench.FULL, 1)
    assert same == outputs
    assert [len(prompt) for prompt in shifted] == [len(prompt) for prompt in prompts]
    assert shifted[0][:2] == [(prompts[0][0] + 1009) % 10_001, (prompts[0][1] + 1010) % 10_001]
