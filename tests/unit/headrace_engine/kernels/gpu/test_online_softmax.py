"""Softmax tile by tile against softmax at once, in both forms, and parts of it put together."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from headrace_engine.kernels.gpu.online_softmax import fold_narrow, fold_wide, merge_narrow
from support.gpu import poisoned, random, relative_error

pytestmark = pytest.mark.torch

KEYS, QUERIES, DIM, TILE = 64, 16, 32, 16
LOG2_E = 1.4426950408889634


@triton.jit
def _narrow(
    scores, values, out, split, Q: tl.constexpr, D: tl.constexpr, T: tl.constexpr, K: tl.constexpr
):
    """Scores [K, Q]: tiles before and after ``split`` apart, then merged."""
    query = tl.arange(0, Q)
    lane = tl.arange(0, D)
    step = tl.arange(0, T)
    highest = tl.full([Q], float("-inf"), tl.float32)
    mass = tl.zeros([Q], tl.float32)
    total = tl.zeros([D, Q], tl.float32)
    for start in range(split, K, T):
        score = tl.load(scores + (start + step)[:, None] * Q + query[None, :])
        value = tl.load(values + (start + step)[:, None] * D + lane[None, :])
        highest, mass, total = fold_narrow(score, value, highest, mass, total)
    first = tl.full([Q], float("-inf"), tl.float32)
    weight = tl.zeros([Q], tl.float32)
    part = tl.zeros([D, Q], tl.float32)
    for start in range(0, split, T):
        score = tl.load(scores + (start + step)[:, None] * Q + query[None, :])
        value = tl.load(values + (start + step)[:, None] * D + lane[None, :])
        first, weight, part = fold_narrow(score, value, first, weight, part)
    if split > 0:
        told = first + tl.log2(weight)
        highest, mass, total = merge_narrow(told, part / weight[None, :], highest, mass, total)
    tl.store(out + query[None, :] * D + lane[:, None], total / mass[None, :])


@triton.jit
def _wide(
    scores, values, out, scale, Q: tl.constexpr, D: tl.constexpr, T: tl.constexpr, K: tl.constexpr
):
    """Scores [Q, K], -inf where a query does not see a key."""
    query = tl.arange(0, Q)
    lane = tl.arange(0, D)
    step = tl.arange(0, T)
    highest = tl.full([Q], float("-inf"), tl.float32)
    mass = tl.zeros([Q], tl.float32)
    total = tl.zeros([Q, D], tl.float32)
    for start in range(0, K, T):
        score = tl.load(scores + query[:, None] * K + (start + step)[None, :])
        value = tl.load(values + (start + step)[:, None] * D + lane[None, :])
        highest, mass, total = fold_wide(score, value, highest, mass, total, scale, True)
    tl.store(out + query[:, None] * D + lane[None, :], total / mass[:, None])


@pytest.mark.parametrize("split", [0, TILE, 3 * TILE])
def test_tiles_and_parts_give_the_softmax_of_all(split: int) -> None:
    scores = random(KEYS, QUERIES, dtype=torch.float32) * 8
    values = random(KEYS, DIM, dtype=torch.float32, seed=1)
    out = poisoned(QUERIES, DIM, dtype=torch.float32)
    _narrow[(1,)](scores * LOG2_E, values, out, split, Q=QUERIES, D=DIM, T=TILE, K=KEYS)
    assert relative_error(out, scores.T.softmax(-1) @ values) < 1e-5


def test_queries_that_have_seen_nothing_yet_wait_for_their_first_key() -> None:
    scores = random(QUERIES, KEYS, dtype=torch.float32) * 8
    for query in range(QUERIES):
        scores[query, : query * 3] = float("-inf")
    values = random(KEYS, DIM, dtype=torch.float32, seed=1)
    out = poisoned(QUERIES, DIM, dtype=torch.float32)
    _wide[(1,)](scores, values, out, 0.5 * LOG2_E, Q=QUERIES, D=DIM, T=TILE, K=KEYS)
    assert relative_error(out, (scores * 0.5).softmax(-1) @ values) < 1e-5
