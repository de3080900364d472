"""Greedy choice, sampling and logit changes: the same tokens as the CPU sampler."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headrace_engine.executor.sampler import filtered, gumbel, noise_key
from headrace_engine.kernels.gpu.adjust import MOST, adjust, count
from headrace_engine.kernels.gpu.argmax import chunks_of, greedy
from headrace_engine.kernels.gpu.sample import sample
from support.gpu import DEVICE, poisoned, random

pytestmark = pytest.mark.torch

VOCABULARY = 9001


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def run_greedy(logits: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    rows = len(logits)
    chosen, failed = poisoned(rows, dtype=torch.int32), poisoned(rows, dtype=torch.int32)
    last = poisoned(rows + 2, dtype=torch.int32)
    chunks = chunks_of(VOCABULARY)
    scratch = (
        poisoned(rows, chunks, dtype=torch.float32),
        poisoned(rows, chunks, dtype=torch.int32),
    )
    queries, slots = column(*range(rows)), column(*[rows - 1 - r for r in range(rows)])
    greedy(logits, scratch, queries, slots, chosen, failed, last)
    return chosen.tolist(), failed.tolist(), last.tolist()


def test_greedy_takes_the_first_of_equal_logits_and_remembers_it_by_slot() -> None:
    logits = random(3, VOCABULARY, dtype=torch.float32)
    logits[0, 4095] = logits[0, 4096] = logits[0, 9000] = 50.0
    logits[1, 9000] = 60.0
    chosen, failed, last = run_greedy(logits)
    assert chosen == [4095, 9000, int(logits[2].argmax())]
    assert failed == [0, 0, 0]
    assert last[:3] == chosen[::-1]


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_fails_alone(poison: float) -> None:
    logits = random(3, VOCABULARY, dtype=torch.float32)
    logits[1, 5000] = poison
    chosen, failed, _ = run_greedy(logits)
    assert failed == [0, 1, 0]
    assert chosen == [int(logits[0].argmax()), 0, int(logits[2].argmax())]


CASES = [
    (0.0, 1.0, 0.0, 0),
    (1.0, 1.0, 0.0, 0),
    (0.7, 0.9, 0.0, 0),
    (1.3, 1.0, 0.0, 40),
    (1.0, 0.5, 0.0, 7),
    (1.0, 1.0, 0.2, 0),
    (2.0, 0.01, 0.0, 0),
    (1.0, 1.0, 0.0, 1),
    (1.0, 0.5, 0.2, 0),
]


def run_sample(
    logits: torch.Tensor, cases: list[tuple[float, float, float, int]], seeds: list[int], index: int
) -> tuple[list[int], list[int]]:
    rows = len(logits)
    floats = torch.zeros(rows, 8)
    words = torch.zeros(rows, 8, dtype=torch.int64)
    for row, (temperature, top_p, min_p, top_k) in enumerate(cases):
        floats[row, :3] = torch.tensor([temperature, top_p, min_p])
        words[row, :3] = torch.tensor([seeds[row], row % 3, top_k])
    chosen, failed = poisoned(rows, dtype=torch.int32), poisoned(rows, dtype=torch.int32)
    order = column(*range(rows))
    sample(
        logits,
        order,
        order,
        torch.full_like(order, index),
        floats.to(DEVICE),
        words.to(DEVICE),
        chosen,
        failed,
        poisoned(rows, dtype=torch.int32),
    )
    return chosen.tolist(), failed.tolist()


@pytest.mark.parametrize("index", [0, 1, 77])
def test_sampled_tokens_are_the_cpu_samplers(index: int) -> None:
    logits = random(len(CASES), VOCABULARY, dtype=torch.float32, seed=index) * 3
    seeds = [0, 1, 2**40 + 5, -7, 12345, 99, 3, 4, 5]
    chosen, failed = run_sample(logits, CASES, seeds, index)
    expected: list[int] = []
    for row, (temperature, top_p, min_p, top_k) in enumerate(CASES):
        values = logits[row].cpu().numpy()
        if temperature == 0:
            expected.append(int(values.argmax()))
            continue
        scaled = values / np.float32(temperature)
        kept = filtered(scaled, top_k, top_p, min_p)
        kept = np.arange(VOCABULARY) if kept is None else kept
        key = noise_key(seeds[row] & (2**64 - 1), row % 3, index)
        noise = gumbel(kept.astype(np.uint32), key)
        expected.append(int(kept[(scaled[kept] + noise).argmax()]))
    assert chosen == expected
    assert not any(failed)


def test_top_p_is_a_share_of_what_min_p_has_not_cut() -> None:
    weights = [1.0, 0.5] + [0.1] * 48
    logits = torch.full((1, VOCABULARY), -20.0)
    logits[0, : 7 * len(weights) : 7] = torch.tensor(weights).log()
    kept = filtered(logits[0].numpy(), 50, 0.3, 0.4)
    assert kept is not None
    assert kept.tolist() == [0, 7], "0.3 of 6.3 is more than the first weight, of 1.5 it is less"
    # The noise of these two prefers one token each.
    chosen, _ = run_sample(logits.repeat(2, 1).to(DEVICE), [(1.0, 0.3, 0.4, 50)] * 2, [5, 5], 0)
    assert chosen == [7, 0]


def test_sampling_fails_a_row_with_nan_alone() -> None:
    logits = random(2, VOCABULARY, dtype=torch.float32)
    logits[0, 8000] = float("nan")
    chosen, failed = run_sample(logits, [CASES[1], CASES[0]], [1, 2], 0)
    assert failed == [1, 0]
    assert chosen == [0, int(logits[1].argmax())]


def test_penalties_bias_and_bans_change_only_their_logits() -> None:
    logits = random(2, VOCABULARY, dtype=torch.float32)
    before = logits.clone()
    floats = torch.tensor([[0, 0, 0, 0.5, 0.25, 2.0, 0, 0], [0, 0, 0, 0, 0, 1.0, 0, 0]])
    words = torch.zeros(2, 8, dtype=torch.int64)
    words[0, 3:6] = torch.tensor([4, 2, 1])
    generated = torch.zeros(2, VOCABULARY, dtype=torch.int16, device=DEVICE)
    generated[0, 10] = 3
    prompted = torch.zeros(2, VOCABULARY, dtype=torch.uint8, device=DEVICE)
    prompted[0, 20] = 1
    bias_ids = torch.zeros(2, 4, dtype=torch.int32, device=DEVICE)
    bias_ids[0, 0] = 30
    bias_values = torch.full((2, 4), 7.5, device=DEVICE)
    stop_ids = torch.zeros(2, 8, dtype=torch.int32, device=DEVICE)
    stop_ids[0, :2] = column(40, 30)
    order = column(0, 1)
    adjust(
        logits,
        order,
        order,
        column(3, 3),
        floats.to(DEVICE),
        words.to(DEVICE),
        (generated, prompted),
        (bias_ids, bias_values),
        stop_ids,
    )

    def repeated(value: float) -> float:
        return value / 2 if value > 0 else value * 2

    expected = before.clone()
    expected[0, 10] = repeated(float(before[0, 10])) - 0.75 - 0.5
    expected[0, 20] = repeated(float(before[0, 20]))
    expected[0, 30] = expected[0, 40] = float("-inf")
    torch.testing.assert_close(logits, expected)


def test_a_token_is_counted_as_often_as_its_counter_can_say() -> None:
    generated = torch.full((2, VOCABULARY), MOST - 1, dtype=torch.int16, device=DEVICE)
    for _ in range(3):
        count(column(5), column(0), column(1), generated)
    assert generated[1, 5] == MOST == torch.iinfo(torch.int16).max
    assert generated[1, 6] == MOST - 1


def test_chosen_tokens_are_counted_by_slot() -> None:
    generated = torch.zeros(3, VOCABULARY, dtype=torch.int16, device=DEVICE)
    count(column(5, 9000), column(0, 1), column(2, 0), generated)
    count(column(5, 8), column(0, 1), column(2, 0), generated)
    assert generated[2, 5] == 2
    assert generated[0, 9000] == 1
    assert generated.sum() == 4
