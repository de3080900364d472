"""What the decoder on a CUDA device takes from the shape of its model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.model.cuda_decoder import FRESH_TOKENS, FRESH_TOKENS_OF_SMALL, CudaDecoder
from headrace_engine.model.cuda_weights import described_weights
from headrace_engine.model.opening import read_config

pytestmark = pytest.mark.torch
SHAPES = Path(__file__).parents[4] / "docker/shapes"


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [("qwen3-0.6b", FRESH_TOKENS_OF_SMALL), ("llama-3.1-8b", FRESH_TOKENS)],
)
def test_steps_that_are_launched_one_by_one_are_long_enough_to_hide_it(
    shape: str, tokens: int
) -> None:
    weights = described_weights(read_config(str(SHAPES / shape)), torch.bfloat16, 16)
    nothing = torch.empty(0, device=DEVICE)
    assert CudaDecoder(weights, nothing, nothing).fresh_tokens == tokens
