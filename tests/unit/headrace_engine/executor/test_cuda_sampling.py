"""The device's sampler chooses what the CPU's does, also at the edges of what may be asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.batch import decode_batch, slot_sampling
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_sampling import CLASSES, CudaSampler, StepClass
from headrace_engine.executor.sampler import NumpySampling, Sampler
from headrace_engine.state.batch import SlotStart
from torch import Tensor

pytestmark = pytest.mark.torch

VOCABULARY = 331
EDGES: list[dict[str, Any]] = [
    {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 1.0},
    {"temperature": 9e-6, "top_p": 0.5},
    {"temperature": 1e-40, "min_p": 0.1, "top_k": 1},
    {"temperature": 1e-50, "repetition_penalty": 1.3},
    {"temperature": 2.0, "top_p": 0.0, "seed": -1},
    {"temperature": 1.0, "top_k": VOCABULARY, "seed": 2**64 - 1},
    {"temperature": 1.0, "top_k": VOCABULARY - 1, "seed": -(2**63)},
    {"temperature": 1.0, "min_p": 1.0, "seed": 2**63},
    {"temperature": 0.7, "bias_ids": tuple(range(300)), "bias_values": (-100.0,) * 300},
    {"temperature": 0.7, "bias_ids": (5,), "bias_values": (100.0,)},
    {"temperature": 0.7, "min_new_tokens": 3, "stop_token_ids": frozenset(range(1, 17))},
    {"temperature": 1.0, "presence_penalty": -2.0, "frequency_penalty": 2.0, "top_p": 0.999999},
    {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1e-40},
    {"logprobs": 0},
    {"logprobs": 20, "temperature": 1.0},
]


def values(tensor: Tensor) -> list[int]:
    return tensor.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def test_every_edge_gives_the_cpus_token() -> None:
    rows = len(EDGES)
    tokens = np.arange(60, dtype=np.int32)
    starts = [
        SlotStart(slot, tokens, 40, slot % 3, slot_sampling(**edge))
        for slot, edge in enumerate(EDGES)
    ]
    cpu = Sampler(rows, VOCABULARY, NumpySampling())
    ours = CudaSampler(rows + 1, rows, VOCABULARY, torch.device(DEVICE))
    ours.start(starts)
    for start in starts:
        cpu.start(start)
    drawn = 5 * np.random.default_rng(3).standard_normal((rows, VOCABULARY))
    logits = drawn.astype(np.float32)
    slots, index = np.arange(rows, dtype=np.int32), np.full(rows, 2, np.int32)
    expected = cpu.sample(slots, index, logits)
    order = torch.as_tensor(slots, device=DEVICE)
    given = torch.tensor(logits, device=DEVICE)
    with np.errstate(all="ignore"):  # the interpreter computes by numpy, which would warn
        ours.choose(given, CLASSES[-1], order, order, torch.as_tensor(index, device=DEVICE))
    assert values(ours.chosen[0]) == expected.tokens.tolist()
    assert values(ours.chosen[1]) == expected.failed.tolist()
    assert expected.failed.tolist() == [edge.get("repetition_penalty") == 1e-40 for edge in EDGES]
    assert expected.top_ids is not None
    assert expected.chosen_logprobs is not None
    assert values(ours.top_ids[-1]) == expected.top_ids[-1].tolist()
    np.testing.assert_allclose(
        ours.chosen_logprobs[-2:].cpu(), expected.chosen_logprobs[-2:], atol=1e-4
    )


def test_a_sequence_that_comes_back_with_more_of_one_token_than_is_counted_is_penalized() -> None:
    tokens = np.full(40_000, 7, np.int32)
    asked = slot_sampling(temperature=0.0, frequency_penalty=0.001)
    sampler = CudaSampler(2, 1, VOCABULARY, torch.device(DEVICE))
    sampler.start([SlotStart(0, tokens, 1, 0, asked)])
    logits = torch.zeros(1, VOCABULARY, device=DEVICE)
    logits[0, 7], logits[0, 8] = 20.0, 1.0
    nothing = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    sampler.choose(logits, CLASSES[2], nothing, nothing, nothing)
    assert values(sampler.chosen[0]) == [8]


def test_logprobs_are_no_more_than_there_are_tokens() -> None:
    sampler = CudaSampler(2, 1, 5, torch.device(DEVICE))
    batch = decode_batch(1, first=True, logprobs=20, temperature=0.0)
    sampler.note(batch.starts)
    sampler.start(batch.starts)
    assert sampler.width_of(batch) == 5
    logits = torch.tensor([[0.0, 3.0, 1.0, 4.0, 2.0]], device=DEVICE)
    nothing = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    sampler.choose(logits, CLASSES[3], nothing, nothing, nothing)
    assert values(sampler.top_ids[0, :5]) == [3, 1, 4, 2, 0]
    assert float(sampler.top_logprobs[0, :5].exp().sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("asked", "step", "width"),
    [
        # A temperature that counts as none takes a greedy step.
        ({"temperature": 1e-40}, CLASSES[0], -1),
        ({"temperature": 0.5}, CLASSES[1], -1),
        ({"temperature": 0.0, "frequency_penalty": 1.0}, CLASSES[2], -1),
        ({"min_new_tokens": 3}, CLASSES[0], -1),
        ({"min_new_tokens": 3, "stop_token_ids": frozenset([5])}, CLASSES[2], -1),
        ({"logprobs": 2}, CLASSES[3], 2),
    ],
)
def test_a_step_is_of_the_least_class_that_its_rows_need(
    asked: dict[str, Any], step: StepClass, width: int
) -> None:
    sampler = CudaSampler(2, 1, VOCABULARY, torch.device(DEVICE))
    plain: dict[str, Any] = {"temperature": 0.0}  # nothing of who had the slot before is left
    for found, wanted, fields in ((step, width, asked), (CLASSES[0], -1, plain)):
        batch = decode_batch(1, first=True, **fields)
        sampler.note(batch.starts)
        assert (sampler.class_of(batch), sampler.width_of(batch)) == (found, wanted)


def test_what_warms_it_up_changes_no_slot_that_runs() -> None:
    sampler = CudaSampler(3, 2, VOCABULARY, torch.device(DEVICE))
    tokens = np.arange(5, dtype=np.int32)
    starts = [SlotStart(slot, tokens, 5, 0, slot_sampling(temperature=0.9)) for slot in (0, 1)]
    sampler.note(starts)
    sampler.start(starts)
    sampler.warm_up()
    assert values(sampler.last) == [4, 4, 0]
    batch = decode_batch(1, first=True)
    assert sampler.class_of(batch) == CLASSES[1]
