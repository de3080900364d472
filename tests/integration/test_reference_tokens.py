"""The whole engine core on the default model gives the reference's greedy tokens, whatever runs beside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from headrace_contracts.codes import FinishReason
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.executor.cpu import CpuExecutor
from support.engine import Rig
from support.smollm2 import model_path

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

REFERENCE = json.loads((Path(__file__).parents[1] / "data/smollm2_greedy.json").read_text())
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in REFERENCE["cases"]}
SETTINGS: dict[str, Any] = {
    "max_batch": 16,
    "max_waiting": 64,
    "batch_tokens": 256,
    "audit": False,
    "prefill_chunk_tokens": 128,
    "session_tokens": 512,
    "block_tokens": 16,
    "pool_blocks": 256,
}


def make_rig(**changes: Any) -> Rig:
    model_path()
    executor = CpuExecutor.load(DEFAULT_MODEL, threads=2)
    return Rig(executor=executor, **(SETTINGS | changes))


def push(rig: Rig, name: str, **fields: Any) -> int:
    case = CASES[name]
    return rig.push(
        case["prompt_ids"],
        len(case["output_ids"]),
        temperature=0.0,
        stop_token_ids=frozenset({2}),
        **fields,
    )


def assert_reference(rig: Rig, handle: int, name: str, choice: int = 0) -> None:
    assert rig.tokens(handle, choice) == CASES[name]["output_ids"], name
    expected = FinishReason.STOP if CASES[name]["finish"] == "stop" else FinishReason.LENGTH
    assert rig.reason(handle, choice) == expected


def end(rig: Rig) -> None:
    rig.run()
    rig.assert_idle()
    rig.executor.close()


def test_alone_and_again_from_cached_blocks() -> None:
    rig = make_rig()
    # The shorter ones: a stream alone is the slowest way to make tokens.
    names = ("haiku", "math", "multi")
    for name in names:
        handle = push(rig, name)
        rig.run()
        assert_reference(rig, handle, name)
    for name in names:
        handle = push(rig, name)
        rig.run()
        assert_reference(rig, handle, name)
        started = rig.choice(handle).started
        assert started is not None
        assert started.cached_tokens > 0
    end(rig)


def test_in_a_batch_of_sixteen_with_others_that_sample() -> None:
    rig = make_rig()
    others = [
        rig.push(range(100 + 7 * i, 130 + 9 * i), 40, temperature=1.0, seed=i, top_p=0.9)
        for i in range(10)
    ]
    handles = {name: push(rig, name) for name in CASES}
    end(rig)
    for name, handle in handles.items():
        assert_reference(rig, handle, name)
    assert all(rig.reason(handle) == FinishReason.LENGTH for handle in others)


def test_with_prompts_cut_into_chunks() -> None:
    rig = make_rig(prefill_chunk_tokens=16, batch_tokens=48)
    handles = {name: push(rig, name) for name in CASES}
    end(rig)
    for name, handle in handles.items():
        assert_reference(rig, handle, name)


def test_after_preemption_under_a_tiny_cache() -> None:
    # Each sequence grows to about 8 blocks of 16: six of them do not fit in 18.
    rig = make_rig(pool_blocks=18)
    handles = {name: push(rig, name) for name in CASES}
    end(rig)
    preemptions = 0
    for name, handle in handles.items():
        assert_reference(rig, handle, name)
        finish = rig.choice(handle).end
        assert finish is not None
        preemptions += finish.usage.preemptions
    assert preemptions > 0


def test_after_a_neighbour_was_cancelled() -> None:
    rig = make_rig()
    handles = {name: push(rig, name) for name in CASES}
    same = push(rig, "capital")
    for _ in range(10):
        rig.step()
    rig.cancel(rig.requests[same].handle)
    end(rig)
    assert rig.reason(same) == FinishReason.CANCELLED
    for name, handle in handles.items():
        assert_reference(rig, handle, name)


def test_choices_that_share_a_prompt_and_a_resumed_one() -> None:
    rig = make_rig()
    twice = push(rig, "code", n=2)
    given = CASES["math"]["output_ids"][:20]
    resumed = push(rig, "math", generated=[given])
    end(rig)
    assert_reference(rig, twice, "code", 0)
    assert_reference(rig, twice, "code", 1)
    assert given + rig.tokens(resumed) == CASES["math"]["output_ids"]
    assert rig.choice(resumed).first == 20


def test_a_sampled_request_has_the_same_tokens_alone_and_in_a_crowd() -> None:
    rig = make_rig()
    fields: dict[str, Any] = {"temperature": 0.9, "top_k": 50, "seed": 11, "frequency_penalty": 0.2}
    prompt = CASES["haiku"]["prompt_ids"]
    alone = rig.push(prompt, 30, **fields)
    rig.run()
    crowd = [rig.push(range(50 + i, 80 + 2 * i), 30, temperature=1.0, seed=i) for i in range(9)]
    again = rig.push(prompt, 30, **fields)
    end(rig)
    assert len(crowd) == 9
    assert rig.tokens(alone) == rig.tokens(again)
