"""The CUDA executor at the least settings says what the CPU's does; on a GPU, or interpreted.

More of it, which takes the interpreter minutes, is in tests/gpu.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpu import DEVICE, ON_GPU, compiled_from_here

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor import cuda
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.executor.cuda import CudaExecutor
from support.decoding import Driver, Run
from support.models import save, tiny_model

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # the interpreter takes its time

PROMPT = [5, 9, 2, 300, 17]
STARTS = [
    (1, 17, 16, 14),
    (1, 1041, 1024, 1026),
    (2, 18, 16, 40),
    (3, 512, 32, 40),
    (17, 33, 16, 40),
]
"""max_batch, batch_tokens, block_tokens, positions of a sequence: the least ones, and odd ones."""


def as_they_are(_: Path) -> None:
    """Kernels stay where Triton keeps them: another folder would be one, by the environment too, for
    the tests that follow."""


@pytest.mark.parametrize(
    ("slots", "tokens", "block", "positions"), STARTS if ON_GPU else STARTS[:1]
)
def test_a_start_at_the_edges_of_settings_says_what_the_cpu_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    tokens: int,
    block: int,
    positions: int,
) -> None:
    monkeypatch.setattr(cuda, "keep_kernels", as_they_are)
    folder = save(tiny_model("qwen3", num_hidden_layers=2 if ON_GPU else 1), tmp_path)
    executor = CudaExecutor.load(str(folder), device=DEVICE, dtype=torch.float32)
    if ON_GPU:
        # Nearly all of the card, some of which tests beside this one may hold.
        assert executor.cache_room(ExecutorLimits(slots, tokens, positions, block, 0, 2), 0.95)
    told: list[list[int]] = []
    for each in (executor, CpuExecutor.load(str(folder), kernels="torch")):
        driver = Driver(
            each,
            slots=slots,
            batch_tokens=tokens,
            sequence_tokens=positions,
            block_tokens=block,
            pool_blocks=slots + 1,
        )
        compiled = compiled_from_here(monkeypatch)
        out = [
            driver.run([Run(slot, 0, PROMPT, 0, driver.start(slot, PROMPT))])
            for slot in range(slots)
        ]
        out.append(driver.run([Run(slot, len(PROMPT), None, 1) for slot in range(slots)]))
        # A prompt of one token runs as a decode step does, which has to know how to choose by then.
        begins = driver.start(0, [7], temperature=9.0, seed=3)
        out.append(driver.run([Run(0, 0, [7], 0, begins)]))
        assert not compiled
        assert not any(one.failed.any() for one in out)
        told.append([token for one in out for token in one.tokens.tolist()])
        each.close()
    assert told[0] == told[1]
