"""Greedy tokens and log probabilities of the whole engine on a GPU, against ``transformers``.

The reference computes in float32 with the same weights, and once more in bfloat16: how far that is
from float32 is the noise that bfloat16 has anyway. A token of ours that is not the reference's most
likely one must be closer to it than that.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from headrace_engine.api import Completion
from headrace_engine.state.request import Sampling
from support.gpu import DEVICE, ON_GPU
from support.gpu_engine import gpu_engine
from support.models import logits_of, reopened, rounded, save, tiny_model

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device"),
]
VOCABULARY, TOP = 4000, 20
LENGTHS = (3, 17, 64, 130, 300, 700, 1100, 2100)


SETTINGS: dict[str, object] = {
    "max_batch": 32,
    "max_waiting": 64,
    "batch_tokens": 4096,
    "prefill_chunk_tokens": 2560,
    "context_tokens": 2560,
    "cache_blocks": 1200,
}


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that bfloat16 holds exactly, so that they are the same everywhere."""
    family = str(request.param)
    model = tiny_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(0.3)
    return save(rounded(model), tmp_path_factory.mktemp(family))


def prompts() -> list[list[int]]:
    source = np.random.default_rng(11)
    drawn = [source.integers(0, VOCABULARY, n).tolist() for n in LENGTHS]
    # Twenty that begin alike: the later ones find the beginning in the cache.
    return drawn + [drawn[5][:512] + source.integers(0, VOCABULARY, 40).tolist() for _ in range(20)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"phases": 1},
        {"prefill_chunk_tokens": 64, "batch_tokens": 160},
        {"cache_blocks": 160},
    ],
    ids=["two phases", "one phase", "chunks", "short of memory"],
)
def test_tokens_and_logprobs_are_within_the_noise_of_bfloat16(
    folder: Path, changes: dict[str, object]
) -> None:
    asked = prompts()
    how = Sampling(24, temperature=0.0, logprobs=TOP)
    with gpu_engine(folder, **SETTINGS | changes) as engine:
        given = engine.infer(asked, how)
        again = engine.infer(asked[:6], how)
        metrics = engine.get_schedule_metrics()
    if changes.get("cache_blocks"):
        assert metrics.preemptions + metrics.evictions > 0
    wide, narrow = reopened(folder), rounded(reopened(folder))
    for model in (wide, narrow):
        torch.nn.Module.to(model, DEVICE)
    for ids, completion in [*zip(asked, given, strict=True), *zip(asked, again, strict=False)]:
        whole = [*ids, *completion.tokens]
        with torch.device(DEVICE):
            exact = logits_of(wide, whole)[len(ids) - 1 : -1]
            rough = logits_of(narrow, whole)[len(ids) - 1 : -1]
        check(completion, exact.log_softmax(-1).cpu(), rough.log_softmax(-1).cpu())


def check(completion: Completion, exact: torch.Tensor, rough: torch.Tensor) -> None:
    """Every token and its candidates, given all tokens before it."""
    noise = float((rough - exact).abs().max())
    rows = zip(completion.tokens, completion.logprobs, exact, strict=True)
    for i, (token, told, expected) in enumerate(rows):
        gap = float(expected.max() - expected[token])
        assert gap <= 2 * noise, f"token {i}: {gap:.4f} below the best, noise {noise:.4f}"
        assert abs(told.chosen - float(expected[token])) <= 2 * noise
        for candidate, logprob in told.top:
            assert abs(logprob - float(expected[candidate])) <= 2 * noise
        assert len(told.top) == TOP
        least = min(float(expected[candidate]) for candidate, _ in told.top)
        assert least >= float(expected.topk(TOP).values[-1]) - 2 * noise
