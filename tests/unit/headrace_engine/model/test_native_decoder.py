"""Native and torch decoders against transformers, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.model.decoder import CacheLayout
from headrace_engine.model.native_decoder import unsupported_reason
from headrace_engine.model.opening import open_model
from support.decoding import Driver, Run
from support.models import is_greedy, logits_of, reopened, rounded, save, tiny_model
from transformers.modeling_utils import PreTrainedModel

pytestmark = pytest.mark.torch

Kernels = Literal["native", "torch"]
PROMPTS = [
    [int(token) for token in np.random.default_rng(length).integers(3, 331, length)]
    for length in (1, 2, 15, 16, 17, 40, 90)
]


def load(folder: Path, kernels: Kernels, **options: Any) -> CpuExecutor:
    return CpuExecutor.load(str(folder), kernels=kernels, threads=2, **options)


def last_logits(executor: CpuExecutor, tokens: list[int]) -> dict[int, float]:
    """Logprob of every token after ``tokens``."""
    driver = Driver(executor)
    start = driver.start(0, tokens, logprobs=331)
    output = driver.run([Run(0, 0, tokens, 0, start)])
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    return dict(zip(output.top_ids[0].tolist(), output.top_logprobs[0].tolist(), strict=True))


def assert_greedy(model: PreTrainedModel, generated: list[list[int]]) -> None:
    for prompt, tokens in zip(PROMPTS, generated, strict=True):
        assert is_greedy(model, prompt, tokens)


def assert_close(executor: CpuExecutor, model: PreTrainedModel, tolerance: float) -> None:
    found = last_logits(executor, PROMPTS[-1])
    expected = torch.log_softmax(logits_of(model, PROMPTS[-1])[-1], -1)
    assert len(found) == len(expected)
    worst = max(abs(found[token] - float(expected[token])) for token in found)
    assert worst < tolerance


@pytest.mark.parametrize("kernels", ["native", "torch"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_tokens_and_logprobs_equal_those_of_transformers(
    family: str, kernels: Kernels, tmp_path: Path
) -> None:
    model = tiny_model(family)
    folder = save(model, tmp_path)
    executor = load(folder, kernels)
    assert_greedy(model, Driver(executor).generate(PROMPTS, 12))
    executor.close()
    executor = load(folder, kernels)
    assert_close(executor, model, 2e-4)
    executor.close()


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_untied_sharded_bfloat16_folder_gives_the_same_tokens(
    kernels: Kernels, tmp_path: Path
) -> None:
    model = rounded(tiny_model(tie_word_embeddings=False, seed=1))
    folder = save(model, tmp_path, shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    executor = load(folder, kernels)
    # Weights that were rounded to bf16 are exact in float32.
    assert_greedy(reopened(folder), Driver(executor).generate(PROMPTS, 8))
    executor.close()


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_llama3_rope_scaling_equals_that_of_transformers(kernels: Kernels, tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = tiny_model(rope_parameters=rope, seed=2)
    executor = load(save(model, tmp_path), kernels)
    assert_close(executor, model, 2e-4)
    executor.close()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_sequence_gives_the_same_bits_alone_in_a_batch_and_in_chunks(
    family: str, tmp_path: Path
) -> None:
    folder = save(tiny_model(family), tmp_path)
    prompt = PROMPTS[-1]
    alone = load(folder, "native")
    driver = Driver(alone)
    whole = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt, logprobs=331))])

    crowded = load(folder, "native")
    driver = Driver(crowded)
    others = [Run(i + 1, 0, p, 0, driver.start(i + 1, p)) for i, p in enumerate(PROMPTS)]
    start = driver.start(0, prompt, logprobs=331)
    driver.run([*others, Run(0, 0, prompt[:33], None, start)])
    decode = [Run(i + 1, len(p), None, 1) for i, p in enumerate(PROMPTS)]
    driver.run([*decode[:3], Run(0, 33, prompt[33:40], None)])
    mixed = driver.run([Run(0, 40, prompt[40:], 0), *decode[3:]])

    assert whole.top_logprobs is not None
    assert mixed.top_logprobs is not None
    assert mixed.tokens[0] == whole.tokens[0]
    assert np.array_equal(mixed.top_logprobs[0], whole.top_logprobs[0])
    alone.close()
    crowded.close()


def test_a_decoded_position_has_the_bits_of_a_prefilled_one(tmp_path: Path) -> None:
    folder = save(tiny_model(), tmp_path)
    executor = load(folder, "native")
    driver = Driver(executor)
    prompt = PROMPTS[5]
    (tokens,) = driver.generate([prompt], 6)
    start = driver.start(0, prompt, logprobs=331)
    decoded = driver.run([Run(0, len(prompt) + 5, None, 6)])
    text = [*prompt, *tokens]
    start = driver.start(1, text, logprobs=331)
    prefilled = driver.run([Run(1, 0, text, 6, start)])
    assert decoded.tokens[0] == prefilled.tokens[0]
    executor.close()


def test_positions_below_store_from_are_read_but_never_written(tmp_path: Path) -> None:
    executor = load(save(tiny_model(), tmp_path), "native")
    driver = Driver(executor)
    prompt = PROMPTS[-1]
    first = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt, logprobs=5))])
    # A second sequence shares the first one's blocks and runs the last part again.
    driver.tables[1] = list(driver.tables[0])
    before = executor.region.copy()
    start = driver.start(1, prompt, logprobs=5)
    again = driver.run([Run(1, 70, prompt[70:], 0, start, store_from=len(prompt))])
    assert np.array_equal(before, executor.region)
    assert np.array_equal(first.tokens, again.tokens)
    assert first.top_logprobs is not None
    assert again.top_logprobs is not None
    assert np.array_equal(first.top_logprobs, again.top_logprobs)
    executor.close()


def test_memory_beyond_a_sequence_cannot_leak_into_it(tmp_path: Path) -> None:
    executor = load(save(tiny_model(), tmp_path), "native")
    driver = Driver(executor)
    executor.region.view(np.float32)[:] = np.nan
    for prompt in PROMPTS:
        output = driver.run([Run(0, 0, prompt, 0, driver.start(0, prompt))])
        assert not output.failed.any()
    executor.close()


def test_threads_do_not_change_a_bit(tmp_path: Path) -> None:
    folder = save(tiny_model(), tmp_path)
    results: list[list[dict[int, float]]] = []
    for threads in (1, 3):
        executor = CpuExecutor.load(str(folder), kernels="native", threads=threads)
        results.append([last_logits(executor, PROMPTS[-1])])
        executor.close()
    assert results[0] == results[1]


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_bfloat16_stays_close_to_float32(kernels: Kernels, tmp_path: Path) -> None:
    model = tiny_model()
    executor = load(save(model, tmp_path), kernels, dtype="bfloat16")
    assert executor.shape.kv_dtype == "bfloat16"
    assert_close(executor, model, 0.6)
    executor.close()


def test_packed_is_refused_where_nothing_is_packed(tmp_path: Path) -> None:
    folder = save(tiny_model(), tmp_path)
    with pytest.raises(ModelRejected, match=r"packed needs weights stored as .* is F32"):
        load(folder, "native", dtype="packed")


def test_blocks_that_are_not_whole_groups_are_refused_by_native_kernels(tmp_path: Path) -> None:
    executor = load(save(tiny_model(), tmp_path), "native")
    with pytest.raises(ValueError, match="block_tokens is 8"):
        Driver(executor, block_tokens=8)
    executor.close()


def test_torch_kernels_take_blocks_of_any_size(tmp_path: Path) -> None:
    model = tiny_model()
    executor = load(save(model, tmp_path), "torch")
    driver = Driver(executor, block_tokens=5, pool_blocks=512)
    assert_greedy(model, driver.generate(PROMPTS, 6, chunk=7))
    executor.close()


def test_odd_heads_go_to_the_torch_twin(tmp_path: Path) -> None:
    folder = save(tiny_model(head_dim=24), tmp_path)
    config = open_model(str(folder)).weights.config
    assert unsupported_reason(config) == "heads of 24 dimensions, not a multiple of 16"
    executor = CpuExecutor.load(str(folder), threads=1)
    assert executor.describe()["kernels"] == "torch"
    executor.close()


def test_a_block_is_aligned_and_holds_every_layer() -> None:
    layout = CacheLayout(layers=3, kv_heads=2, head_dim=32, block_tokens=5, kv_dtype="bfloat16")
    assert layout.lane_groups == 1
    assert layout.layer_items == 2 * 32 * 16 + 2 * 5 * 32
    assert layout.block_bytes % 64 == 0
    assert layout.block_bytes >= 3 * layout.layer_items * 2
    assert layout.token_bytes == 2 * 3 * 2 * 32 * 2
