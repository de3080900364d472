"""What is compiled without a card is what a launch looks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        not Path(sysconfig.get_path("include"), "Python.h").exists(),
        reason="Triton's module in C wants Python's headers, which are not installed",
    ),
]

PROGRAM = """
import json, sys, time
from pathlib import Path
from headrace_engine.kernels.gpu.card import Card, pretend

pretend(Card(9, 0, 132))
import torch
from headrace_engine.kernels.gpu.ahead import compile_launches, noted
from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS
from headrace_engine.kernels.gpu.store import counts, keep_kernels
from headrace_engine.kernels.gpu.swiglu import _BLOCK, _swiglu, swiglu

keep_kernels(Path(sys.argv[1]))

def tensor(*shape, first=0):
    whole = torch.empty(8192, dtype=torch.bfloat16, device="meta")
    return whole[first : first + shape[0] * shape[1]].view(shape)

def run():
    for rows in (3, 7, 3):
        swiglu(tensor(rows, 1024), tensor(rows, 512))
    swiglu(tensor(3, 1024, first=1), tensor(3, 512))  # not aligned: another kernel

wanted = noted(run)

def slow():
    # Goes on once the first kernel is compiled, which is while others are still to come.
    swiglu(tensor(3, 1024), tensor(3, 512))
    limit = time.monotonic() + 120
    while not list(Path(sys.argv[1]).glob("*/_swiglu.cubin")):
        assert time.monotonic() < limit, "nothing is compiled before all launches are noted"
        time.sleep(0.01)
    run()

first, second = compile_launches(slow, 2), compile_launches(run, 2)
before = counts.found, counts.compiled
# Triton's own way from a launch to a kernel, without the launch.
_swiglu.warmup(
    tensor(5, 1024), tensor(5, 512), WIDTH=512, BLOCK=_BLOCK, PDL=DEPENDENT_LAUNCH, num_warps=4,
    grid=(5, 1), **OPTIONS,
)
launched = counts.found - before[0], counts.compiled - before[1]
print(json.dumps([len(wanted), first, second, launched]))
"""


def test_a_launch_finds_what_was_compiled_for_it(tmp_path: Path) -> None:
    """In a process that Triton does not interpret in, as the suite's own does."""
    names = [name for name in os.environ if not name.startswith("TRITON_")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        env={name: os.environ[name] for name in names},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Two kernels; each is compiled once and found afterwards; a launch finds its own.
    assert json.loads(done.stdout) == [2, [0, 2], [2, 0], [1, 0]]
    assert list(tmp_path.glob("modules/cuda_utils-*")), "Triton's own module is compiled ahead too"
