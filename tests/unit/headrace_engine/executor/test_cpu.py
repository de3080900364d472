"""The CPU executor on the default model, against the saved reference outputs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.errors import ModelRejected
from headrace_engine.executor import cpu
from headrace_engine.executor.cpu import CpuExecutor, available_cores
from headrace_engine.kernels.build import NativeUnavailable
from headrace_engine.model.decoder import Dtype, KvDtype
from headrace_engine.state.batch import ResolvedCopy
from support import gguf_files
from support.decoding import Driver, Run
from support.engine import Rig

pytestmark = pytest.mark.torch

REFERENCE = json.loads((Path(__file__).parents[4] / "tests/data/smollm2_greedy.json").read_text())
CASES: list[dict[str, Any]] = REFERENCE["cases"]


@pytest.fixture(scope="module", autouse=True)
def _default_model() -> None:
    pytest.importorskip("torch")
    from support.smollm2 import model_path

    model_path()


@pytest.fixture
def executor() -> Iterator[CpuExecutor]:
    made = CpuExecutor.load(DEFAULT_MODEL, threads=2)
    yield made
    made.close()


def start_of(driver: Driver, slot: int, case: dict[str, Any]) -> Run:
    prompt: list[int] = case["prompt_ids"]
    return Run(slot, 0, prompt, 0, driver.start(slot, prompt, logprobs=5))


def test_greedy_tokens_and_logprobs_equal_the_reference(executor: CpuExecutor) -> None:
    driver = Driver(executor)
    output = driver.run([start_of(driver, i, case) for i, case in enumerate(CASES)])
    worst = 0.0
    for index in range(max(len(case["output_ids"]) for case in CASES)):
        live = [i for i, case in enumerate(CASES) if index < len(case["output_ids"])]
        if index:
            output = driver.run(
                [Run(i, len(CASES[i]["prompt_ids"]) + index - 1, None, index) for i in live]
            )
        assert output.top_logprobs is not None
        for row, i in enumerate(live):
            step = CASES[i]["steps"][index]
            assert output.tokens[row] == CASES[i]["output_ids"][index], CASES[i]["name"]
            gap = np.abs(output.top_logprobs[row] - np.array(step["top5_logprobs"])).max()
            worst = max(worst, float(gap))
    assert worst < 1e-3


@pytest.mark.parametrize(
    ("dtype", "agreement", "distance"), [("bfloat16", 0.95, 0.6), ("packed", 0.98, 0.3)]
)
def test_narrow_weights_stay_close_when_led_along_the_reference(
    dtype: Dtype, agreement: float, distance: float
) -> None:
    executor = CpuExecutor.load(DEFAULT_MODEL, dtype=dtype, threads=2)
    driver = Driver(executor)
    same, total, gaps = 0, 0, list[float]()
    for slot, case in enumerate(CASES):
        text: list[int] = case["prompt_ids"]
        # Every step sees the reference's text, so that one different token does not spread.
        output = driver.run([start_of(driver, slot, case)])
        for index, step in enumerate(case["steps"][:24]):
            if index:
                token: int = case["output_ids"][index - 1]
                output = driver.run([Run(slot, len(text) + index - 1, [token], index)])
            assert output.top_ids is not None
            assert output.top_logprobs is not None
            found = dict(
                zip(output.top_ids[0].tolist(), output.top_logprobs[0].tolist(), strict=True)
            )
            if step["token_id"] in found:
                gaps.append(abs(found[step["token_id"]] - step["top5_logprobs"][0]))
            same += int(output.tokens[0]) == step["token_id"]
            total += 1
    assert same / total >= agreement
    assert max(gaps) < distance
    executor.close()


def test_shape_tells_what_the_scheduler_needs(executor: CpuExecutor) -> None:
    shape = executor.shape
    assert (shape.architecture, shape.vocabulary, shape.context_tokens) == ("llama", 49_152, 8_192)
    assert shape.kv_bytes_per_token == 30 * 2 * 3 * 64 * 4
    assert executor.block_bytes(16) == 16 * shape.kv_bytes_per_token
    assert executor.eos_token_ids == (2,)
    assert executor.describe()["kernels"] == "native"


def test_weights_version_changes_with_what_changes_kv(tmp_path: Path) -> None:
    path = str(gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors()))
    versions: set[str] = set()
    options: list[tuple[Dtype, KvDtype]] = [
        ("float32", "float32"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
    ]
    for dtype, kv_dtype in options:
        executor = CpuExecutor.load(path, threads=1, dtype=dtype, kv_dtype=kv_dtype)
        versions.add(executor.shape.weights_version)
        executor.close()
    assert len(versions) == 3


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    executor = CpuExecutor.load(
        str(path), threads=1, progress=lambda done, total: seen.append((done, total))
    )
    executor.close()
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_restores_come_before_and_publishes_after_the_pass(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    executor = CpuExecutor.load(str(path), threads=1)
    driver = Driver(executor)
    prompt = list(range(3, 60))
    first = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt, logprobs=96))])
    size = driver.block_bytes
    spare = [driver.pool_blocks - 1 - i for i in range(40)]
    spare = [block for block in spare if block not in driver.tables[0]][:3]
    # Three whole blocks are copied; the last is another sequence's to compute.
    copies = [
        ResolvedCopy(driver.tables[0][i] * size, block * size, size)
        for i, block in enumerate(spare)
    ]
    driver.tables[1] = list(spare)
    start = driver.start(1, prompt, logprobs=96)
    published = ResolvedCopy(spare[0] * size, driver.tables[0][3] * size, size)
    again = driver.run([Run(1, 48, prompt[48:], 0, start)], restores=copies, publishes=[published])
    assert first.top_logprobs is not None
    assert again.top_logprobs is not None
    assert np.array_equal(first.top_logprobs, again.top_logprobs)
    target, source = published.target, published.source
    region = executor.region
    assert np.array_equal(region[target : target + size], region[source : source + size])
    executor.close()


@pytest.mark.rule("siblings.copied-before")
@pytest.mark.parametrize("phases", [1, 2])
def test_a_prompt_that_parts_inside_a_block_says_what_it_says_without_a_copy(
    tmp_path: Path, phases: int
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    executor = CpuExecutor.load(str(path), threads=1)
    rig = Rig(
        executor=executor,
        phases=phases,
        block_tokens=16,
        pool_blocks=32,
        session_tokens=96,
        batch_tokens=64,
        prefill_chunk_tokens=32,
    )
    prompt = list(range(3, 44))
    rig.push(prompt, 6)
    rig.run()
    turns = [prompt, [*prompt[:37], 50, 51], [*prompt[:3], 60], [*prompt, *rig.tokens(1)[:3], 70]]
    for turn, begin in zip(turns, (40, 37, 3, 44), strict=True):
        before = rig.loop.metrics.get().cached_tokens
        copied = rig.push(turn, 6, logprobs=3)
        rig.run()
        assert rig.loop.metrics.get().cached_tokens - before == min(begin, len(turn) - 1)
        alone = rig.push(turn, 6, logprobs=3, cache_salt=bytes([begin]))
        rig.run()
        assert rig.tokens(copied) == rig.tokens(alone)
        for one, other in zip(rig.choice(copied).logprobs, rig.choice(alone).logprobs, strict=True):
            assert np.array_equal(one.chosen, other.chosen), "to the last bit"
            assert np.array_equal(one.top_values, other.top_values)
    assert rig.loop.metrics.get().copied_tokens == 8 + 5 + 3 + 12
    rig.assert_idle()
    executor.close()


def test_batches_are_collected_in_order(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    executor = CpuExecutor.load(str(path), threads=1)
    driver = Driver(executor)
    first = driver.batch([Run(0, 0, [5, 6], 0, driver.start(0, [5, 6]))])
    second = driver.batch([Run(0, 2, None, 1)])
    executor.submit(first)
    executor.submit(second)
    with pytest.raises(AssertionError, match="in the order"):
        executor.collect(second)
    executor.close()


def test_without_a_compiler_the_twin_runs_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(threads: int, cache_dir: Path | None = None) -> None:
        raise NativeUnavailable("no C++ compiler found")

    path = str(gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors()))
    native = CpuExecutor.load(path, threads=1)
    monkeypatch.setattr(cpu, "NativeLibrary", refuse)
    twin = CpuExecutor.load(path, threads=1)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("no C++ compiler found") == 1
    assert twin.describe()["kernels"] == "torch"
    with pytest.raises(NativeUnavailable):
        CpuExecutor.load(path, threads=1, kernels="native")
    with monkeypatch.context() as without_torch:
        without_torch.setattr(cpu, "find_spec", {"torch": None}.get)
        with pytest.raises(ModelRejected, match=r"no C\+\+ compiler found; and torch"):
            CpuExecutor.load(path, threads=1)
    prompts = [[5, 6, 7], list(range(40))]
    assert Driver(native).generate(prompts, 8) == Driver(twin).generate(prompts, 8)
    native.close()
    twin.close()


def test_available_cores_is_a_positive_number() -> None:
    assert available_cores() >= 1


@pytest.mark.rule("executor.nothing-allocated-after-start")
def test_passes_allocate_nothing_for_good(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    executor = CpuExecutor.load(str(path), threads=2)
    driver = Driver(executor)
    prompts = [list(range(3, 60)), [4, 5], list(range(20, 40))]
    driver.generate(prompts, 8, logprobs=5, temperature=1.0, presence_penalty=0.1)
    region = executor.region.ctypes.data
    tracemalloc.start()
    driver.tables.clear()
    before = tracemalloc.get_traced_memory()[0]
    driver.generate(prompts, 60, logprobs=5, temperature=1.0, presence_penalty=0.1)
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert executor.region.ctypes.data == region
    # The driver's own tables grow by some blocks; logits alone would be 100 kB a pass.
    assert after - before < 40_000
    executor.close()
