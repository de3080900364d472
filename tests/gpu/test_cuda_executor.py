"""The CUDA executor does what the CPU executor does, batch by batch; on a GPU, or interpreted.

Interpreted it runs without graphs and in float32; everything else is the same code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from headrace_engine.errors import ModelRejected
from headrace_engine.executor import cuda_sharing
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.executor.cuda import CudaExecutor
from headrace_engine.executor.cuda_prefill import PrefillGraphs
from headrace_engine.model import cuda_decoder
from headrace_engine.model.cuda_decoder import FRESH_TOKENS_OF_SMALL
from headrace_engine.state.batch import BatchData, BatchOutput, ResolvedCopy
from support.decoding import Driver, Run
from support.gpu import DEVICE, ON_GPU, compiled_from_here
from support.models import save, tiny_model
from torch.profiler import ProfilerActivity, profile, record_function

pytestmark = pytest.mark.torch

PROMPTS = [list(range(40, 77)), [5, 9, 2, 300, 17], [i * 7 % 331 for i in range(16)]]
SAMPLING: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"temperature": 1.0, "seed": 5, "top_p": 0.9},
    {
        "repetition_penalty": 1.5,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.1,
        "bias_ids": (3, 8),
        "bias_values": (2.0, -1.0),
        "min_new_tokens": 3,
        "stop_token_ids": frozenset([3, 7]),
    },
]


@pytest.fixture(
    scope="module", params=["llama", "qwen2", "qwen3"] if ON_GPU else ["qwen2", "qwen3"]
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = str(request.param)
    place = tmp_path_factory.mktemp(family)
    return save(tiny_model(family, num_hidden_layers=2), place)


def cuda(folder: Path, dtype: torch.dtype = torch.float32) -> Driver:
    executor = CudaExecutor.load(str(folder), device=DEVICE, dtype=dtype)
    return Driver(executor, slots=4, batch_tokens=128, sequence_tokens=128, pool_blocks=40)


def cpu(folder: Path) -> Driver:
    executor = CpuExecutor.load(str(folder), kernels="torch")
    return Driver(executor, slots=4, batch_tokens=128, sequence_tokens=128, pool_blocks=40)


def scenario(driver: Driver) -> tuple[list[list[int]], BatchOutput]:
    """Prefill beside a chunk, a mixed batch, then decode steps in another order of rows."""
    starts = [driver.start(s, PROMPTS[s], **SAMPLING[s]) for s in range(3)]
    out: list[list[int]] = [[], [], []]

    def step(rows: list[Run]) -> BatchOutput:
        output = driver.run(rows)
        assert not output.failed.any()
        slots = [row.slot for row in rows if row.index is not None]
        for slot, token in zip(slots, output.tokens.tolist(), strict=True):
            out[slot].append(token)
        return output

    step(
        [
            Run(1, 0, PROMPTS[1], 0, starts[1]),
            Run(2, 0, PROMPTS[2], 0, starts[2]),
            Run(0, 0, PROMPTS[0][:20], None, starts[0]),
        ]
    )
    mixed = step([Run(1, 5, None, 1), Run(2, 16, None, 1), Run(0, 20, PROMPTS[0][20:], 0)])
    for index in range(1, 4):
        order = [(2, 16), (0, 36), (1, 5)]
        step([Run(slot, base + index, None, len(out[slot])) for slot, base in order])
    return out, mixed


def test_tokens_and_logprobs_are_those_of_the_cpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ON_GPU:  # so that also steps of few tokens go the way of many
        monkeypatch.setattr(cuda_decoder, "ADDED_ROWS", 32)
    ours, theirs = cuda(folder), cpu(folder)
    tokens, output = scenario(ours)
    expected, reference = scenario(theirs)
    assert tokens == expected
    assert output.top_ids is not None
    assert reference.top_ids is not None
    assert output.chosen_logprobs is not None
    assert reference.chosen_logprobs is not None
    np.testing.assert_array_equal(output.top_ids[2], reference.top_ids[2])
    np.testing.assert_allclose(
        output.chosen_logprobs[2], reference.chosen_logprobs[2], atol=1e-3 if ON_GPU else 1e-5
    )
    ours.executor.close()
    theirs.executor.close()


def test_a_shared_prefix_is_read_and_not_written(tmp_path: Path) -> None:
    driver = cuda(save(tiny_model("llama", num_hidden_layers=1), tmp_path))
    prompt = PROMPTS[0]
    alone = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt))])
    driver.tables[1] = driver.tables[0][:2]
    start = driver.start(1, prompt)
    shared = driver.run([Run(1, 32, prompt[32:], 0, start, store_from=32)])
    assert shared.tokens.tolist() == alone.tokens.tolist()
    again = driver.run([Run(2, 0, prompt, 0, driver.start(2, prompt))])
    assert again.tokens.tolist() == alone.tokens.tolist()
    driver.executor.close()


def test_rows_that_share_a_beginning_read_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not ON_GPU:  # few rows do, where each takes seconds
        monkeypatch.setattr(cuda_sharing, "LEAST_ROWS", 3)
        monkeypatch.setattr(cuda_sharing, "LEAST_GROUP", 2)
    rows = cuda_sharing.LEAST_ROWS
    found: list[bool] = []
    real = cuda_sharing.Sharing.worth

    def worth(sharing: cuda_sharing.Sharing, batch: BatchData, size: int) -> bool:
        found.append(real(sharing, batch, size))
        return found[-1]

    monkeypatch.setattr(cuda_sharing.Sharing, "worth", worth)
    folder = save(tiny_model("llama", num_hidden_layers=2 if ON_GPU else 1), tmp_path)
    executor = CudaExecutor.load(str(folder), device=DEVICE, dtype=torch.float32)
    driver = Driver(executor, slots=rows + 1, batch_tokens=128, sequence_tokens=64, pool_blocks=60)
    prompt = PROMPTS[0]
    first = driver.run([Run(rows, 0, prompt, 0, driver.start(rows, prompt))]).tokens.tolist()
    alone = driver.run([Run(rows, 37, None, 1)]).tokens.tolist()
    for slot in range(rows):
        driver.tables[slot] = driver.tables[rows][:2]
        start = driver.start(slot, prompt)
        again = driver.run([Run(slot, 32, prompt[32:], 0, start, store_from=32)])
        assert again.tokens.tolist() == first
    together = driver.run([Run(slot, 37, None, 1) for slot in range(rows)])
    assert found == [False, True]
    assert together.tokens.tolist() == alone * rows
    driver.executor.close()


def test_copies_move_whole_blocks_before_and_after_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps that no captured one has room for."""

    def full(*_: object) -> None:
        """No kind fits."""

    monkeypatch.setattr(PrefillGraphs, "fit", full)
    driver = cuda(save(tiny_model("llama", num_hidden_layers=1), tmp_path))
    prompt = PROMPTS[2]
    expected = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt))]).tokens.tolist()
    size = driver.block_bytes
    first, spare = driver.tables[0][0], 3
    while spare in driver.tables[0]:
        spare += 1
    driver.run(
        [Run(1, 0, [9], 0, driver.start(1, [9]))],
        publishes=[ResolvedCopy(first * size, spare * size, size)],
    )
    driver.tables[2] = [spare]
    copied = driver.run([Run(2, 15, prompt[15:], 0, driver.start(2, prompt), store_from=15)])
    assert copied.tokens.tolist() == expected
    driver.executor.close()


def test_head_sizes_that_the_kernels_cannot_do_are_refused_by_name(tmp_path: Path) -> None:
    folder = save(tiny_model("llama", num_hidden_layers=1, head_dim=24), tmp_path)
    with pytest.raises(ModelRejected, match="head_dim 24"):
        CudaExecutor.load(str(folder), device=DEVICE)


@pytest.mark.skipif(ON_GPU, reason="this machine has a GPU")
def test_a_machine_without_a_device_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="no CUDA device"):
        CudaExecutor.load(str(tmp_path))


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_bfloat16_stays_near_float32_when_teacher_forced(tmp_path: Path) -> None:
    folder = save(tiny_model("qwen3"), tmp_path)
    wide, narrow = cuda(folder), cuda(folder, torch.bfloat16)
    prompt = PROMPTS[0]
    for driver in (wide, narrow):
        driver.start(0, prompt)
    a = wide.run([Run(0, 0, prompt, 0, wide.start(0, prompt, logprobs=5))])
    b = narrow.run([Run(0, 0, prompt, 0, narrow.start(0, prompt, logprobs=5))])
    assert a.top_logprobs is not None
    assert b.top_logprobs is not None
    np.testing.assert_allclose(a.top_logprobs[0], b.top_logprobs[0], atol=0.15)


def test_a_file_with_another_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ModelRejected, match="SHA-256"):
        CudaExecutor.load(str(path), device=DEVICE, sha256="0" * 64)


def kinds_of_steps(driver: Driver) -> list[list[Run]]:
    """A decode step, a prompt that begins, and both in one."""
    return [
        [Run(1, 20, None, 9), Run(0, 50, None, 9)],
        [Run(3, 0, PROMPTS[1], 0, driver.start(3, PROMPTS[1]))],
        [Run(0, 51, None, 10), Run(2, 0, PROMPTS[2], 0, driver.start(2, PROMPTS[2]))],
    ]


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_no_step_calls_what_waits_for_the_device_or_takes_memory_of_it(tmp_path: Path) -> None:
    driver = cuda(save(tiny_model("llama"), tmp_path), torch.bfloat16)
    scenario(driver)
    # With events of one cycle alone, torch warns that it clears those of others.
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, acc_events=True) as trace:
        for rows in kinds_of_steps(driver):
            batch = driver.batch(rows)
            with record_function("submit"):
                driver.executor.submit(batch)
            driver.executor.collect(batch)
    events: list[Any] = list(trace.events() or [])
    # On the device's side there is an event of that name too, which ends when the step does.
    spans = [
        event.time_range
        for event in events
        if event.name == "submit" and event.device_type.name == "CPU"
    ]
    assert len(spans) == 3
    called = Counter(
        event.name
        for event in events
        if event.name.startswith("cu")
        and any(span.start <= event.time_range.start <= span.end for span in spans)
    )
    assert called["cudaGraphLaunch"] == 3  # each of them is one graph, and the trace shows calls
    waits = {
        name for name in called if "Synchronize" in name or name in ("cudaMemcpy", "cudaMemset")
    }
    takes = {name for name in called if "Malloc" in name or "HostAlloc" in name or "Free" in name}
    loads = {name for name in called if "ModuleLoad" in name or "LibraryLoad" in name}
    assert not waits | takes | loads


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_step_neither_synchronizes_nor_allocates(tmp_path: Path) -> None:
    driver = cuda(save(tiny_model("llama"), tmp_path), torch.bfloat16)
    scenario(driver)
    before = torch.cuda.memory_reserved()
    for rows in kinds_of_steps(driver):
        batch = driver.batch(rows)
        try:
            torch.cuda.set_sync_debug_mode("error")
            driver.executor.submit(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        driver.executor.collect(batch)
    assert torch.cuda.memory_reserved() == before


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_nothing_is_compiled_after_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cuda(save(tiny_model("llama"), tmp_path), torch.bfloat16)
    compiled = compiled_from_here(monkeypatch)
    scenario(driver)
    assert not compiled


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_a_long_fresh_prompt_attends_as_its_pieces_do(tmp_path: Path) -> None:
    """Whole by cuDNN at a rounded length; in pieces by our kernel."""
    folder = save(tiny_model("llama", max_position_embeddings=8192), tmp_path)
    executor = CudaExecutor.load(str(folder), device=DEVICE, dtype=torch.bfloat16)
    driver = Driver(
        executor,
        slots=4,
        batch_tokens=12_544,
        sequence_tokens=6400,
        pool_blocks=400,
        block_tokens=64,
    )
    prompt = [i * 37 % 331 for i in range(FRESH_TOKENS_OF_SMALL + 77)]
    other = [i * 11 % 331 for i in range(FRESH_TOKENS_OF_SMALL)]
    whole = driver.run(
        [
            Run(0, 0, prompt, 0, driver.start(0, prompt, logprobs=5)),
            Run(1, 0, other, 0, driver.start(1, other)),
        ]
    )
    driver.run([Run(2, 0, prompt[:600], None, driver.start(2, prompt, logprobs=5))])
    pieces = driver.run([Run(2, 600, prompt[600:], 0)])
    assert whole.top_logprobs is not None
    assert pieces.top_logprobs is not None
    np.testing.assert_allclose(whole.top_logprobs[0], pieces.top_logprobs[0], atol=0.05)


@pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device")
def test_the_cache_that_is_planned_fits(tmp_path: Path) -> None:
    executor = CudaExecutor.load(
        str(save(tiny_model("llama"), tmp_path)), device=DEVICE, dtype=torch.bfloat16
    )
    limits = ExecutorLimits(4, 128, 128, 16, 0, 2)
    room = executor.cache_room(limits, 0.5)
    assert room is not None
    executor.start(replace(limits, region_bytes=room // 4096 * 4096))
    free, total = torch.cuda.mem_get_info()
    assert 0.4 * total < total - free <= 0.5 * total
    executor.close()
    with pytest.raises(ModelRejected, match=r"KV cache \(.* GiB\).* in use, .*lower cache_bytes"):
        executor.start(replace(limits, region_bytes=total))
