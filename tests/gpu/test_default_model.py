"""The default model on a GPU, in bfloat16, against its saved float32 reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace_engine.api import Engine
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.settings import EngineSettings
from headrace_engine.state.request import Sampling
from support.decoding import Driver, Run
from support.gpu import ON_GPU
from support.smollm2 import model_path

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device"),
]
REFERENCE = json.loads((Path(__file__).parents[1] / "data/smollm2_greedy.json").read_text())
CASES: list[dict[str, Any]] = REFERENCE["cases"]
CLOSE = 0.3
"""Nats between two tokens of which bfloat16 weights may prefer either."""


def test_tokens_are_the_references_up_to_a_close_call() -> None:
    settings = EngineSettings.model_validate(
        {
            "model": str(model_path()),
            "executor": "cuda",
            "max_batch": 32,
            "max_waiting": 64,
            "context_tokens": 2048,
            "batch_tokens": 2048,
            "prefill_chunk_tokens": 1024,
            "cache_blocks": 600,
        }
    )
    asked = [case["prompt_ids"] for case in CASES]
    how = [
        Sampling(len(case["output_ids"]), temperature=0.0, stop_token_ids=frozenset([2]))
        for case in CASES
    ]
    with Engine(settings=settings) as engine:
        given = [completion.tokens for completion in engine.infer(asked, how)]
    alike = total = 0
    for case, tokens in zip(CASES, given, strict=True):
        expected: list[int] = case["output_ids"]
        same = next(
            (i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b),
            len(expected),
        )
        alike, total = alike + same, total + len(expected)
        print(f"{case['name']}: {same} of {len(expected)} tokens")
        if same < len(expected):
            gap = distance([*case["prompt_ids"], *expected[:same]], expected[same], tokens[same])
            assert gap < CLOSE, f"{case['name']}: token {same} is {gap:.3f} below the reference's"
    assert alike >= total // 2


def distance(context: list[int], likely: int, other: int) -> float:
    """How far ``other`` is below ``likely`` after ``context``, in nats, in float32."""
    executor = CpuExecutor.load(str(model_path()), kernels="torch")
    driver = Driver(executor, slots=2, batch_tokens=2048, sequence_tokens=2048, pool_blocks=140)
    output = driver.run([Run(0, 0, context, 0, driver.start(0, context, logprobs=20))])
    executor.close()
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    found = dict(zip(output.top_ids[0].tolist(), output.top_logprobs[0].tolist(), strict=True))
    return found[likely] - found.get(other, float("-inf"))
