"""The least time that a workload can take on the card of ``peers.py``, from parts that were measured there.

A walk takes the steps of any engine that batches continuously: each row that decodes has one token in
every step, and prompts fill the rest of it in order. A step costs its products, its rows' keys and
values, and the attention of its prompts; nothing for the host, norms, sampling, or gaps between kernels.

What the parts are: products of a decode step by its rows (cuBLAS, weights rotated past the L2 cache; of
one row the bytes alone), dense products as they go on under the card's power limit, device copy, and
cuDNN's causal attention. An engine can be below: at up to 128 rows ours has faster products than cuBLAS.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

COPY_BYTES_S = 4.22e12


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's shape, and what was measured of it."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    layer_weights: int
    """Items of one layer's matrices,"""
    output_weights: int
    """and of the output layer's."""
    decode_ms: tuple[tuple[int, float], ...]
    """(rows, milliseconds) of all products of a decode step, the output layer's too."""
    dense_flops: float
    """Of products of many tokens, a second."""
    attention_flops: float
    """Of a prompt within itself, a second."""

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return 4 * self.layers * self.kv_heads * self.head_dim

    def products_s(self, tokens: int, outputs: int) -> float:
        """All products of a step, of which ``outputs`` tokens want logits."""
        if tokens < self.decode_ms[-1][0]:
            rows, times = zip(*self.decode_ms, strict=True)
            return float(np.interp(tokens, rows, times)) / 1e3
        items = tokens * self.layers * self.layer_weights + outputs * self.output_weights
        return max(2 * items / self.dense_flops, self.decode_ms[-1][1] / 1e3)

    def flops_of(self, pairs: float) -> float:
        """Attention over so many pairs of a token and one that it sees."""
        return 4 * self.layers * self.heads * self.head_dim * pairs


LLAMA_8B = Parts(
    layers=32,
    heads=32,
    kv_heads=8,
    head_dim=128,
    layer_weights=4096 * (6144 + 4096 + 3 * 14336),
    output_weights=4096 * 128256,
    decode_ms=((1, 3.56), (32, 4.13), (128, 4.57), (192, 5.6), (256, 6.11)),
    dense_flops=720e12,
    attention_flops=560e12,
)
QWEN_06B = Parts(
    layers=28,
    heads=16,
    kv_heads=8,
    head_dim=128,
    layer_weights=1024 * (4096 + 2048 + 3 * 3072),
    output_weights=1024 * 151936,
    decode_ms=((1, 0.28), (32, 0.76), (128, 0.79), (192, 0.86), (256, 0.92)),
    dense_flops=650e12,
    attention_flops=560e12,
)


class Request(NamedTuple):
    """Tokens of one request."""

    prompt: int
    """To compute,"""
    output: int
    """and to generate."""
    cached: int = 0
    """Before the prompt: of a beginning that all have in common, which another one computes."""


@dataclass(slots=True)
class Floor:
    """Seconds of a whole workload, by what they are for."""

    steps: int = 0
    first_s: float = 0.0
    """Of the first step."""
    products_s: float = 0.0
    context_s: float = 0.0
    """Keys and values that rows read which decode."""
    prompts_s: float = 0.0
    """Attention of prompts."""

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.products_s + self.context_s + self.prompts_s


def walked(
    parts: Parts, requests: Sequence[Request], *, max_batch: int, batch_tokens: int
) -> Floor:
    """The floor of ``requests`` that come at once, with at most ``max_batch`` resident and steps of at
    most ``batch_tokens`` tokens."""
    floor, waiting, computed = Floor(), deque(requests), 0
    # Of the rows that decode: context of their own, and tokens that are left to generate.
    context, left = np.zeros(0, np.int64), np.zeros(0, np.int64)
    common = max((request.cached for request in requests), default=0)
    while waiting or len(left):
        tokens, pairs, begun = len(left), 0.0, list[Request]()
        while waiting and tokens < batch_tokens and len(left) + len(begun) < max_batch:
            first = waiting[0]
            taken = min(batch_tokens - tokens, first.prompt - computed)
            pairs += taken * (first.cached + computed + (taken + 1) / 2)
            tokens, computed = tokens + taken, computed + taken
            if computed == first.prompt:
                begun.append(waiting.popleft())
                computed = 0
        floor.steps += 1
        floor.products_s += parts.products_s(tokens, len(left) + len(begun))
        if len(left):
            floor.context_s += (int(context.sum()) + common) * parts.kv_bytes / COPY_BYTES_S
        floor.prompts_s += parts.flops_of(pairs) / parts.attention_flops
        floor.first_s = floor.first_s or floor.wall_s
        context = np.append(context, [request.prompt for request in begun]) + 1
        left = np.append(left, [request.output for request in begun]) - 1
        context, left = context[left > 0], left[left > 0]
    return floor


def floors_of(
    parts: Parts,
    workloads: Mapping[str, Sequence[Request]],
    *,
    max_batch: int,
    batch_tokens: int,
) -> dict[str, dict[str, float]]:
    """Of each workload: figures as ``workloads.py`` names them, and ``parts``' seconds."""
    told: dict[str, dict[str, float]] = {}
    for name, requests in workloads.items():
        floor = walked(parts, requests, max_batch=max_batch, batch_tokens=batch_tokens)
        told[name] = {
            "out_tok_s": sum(request.output for request in requests) / floor.wall_s,
            "ttft_ms": 1e3 * floor.first_s,
            **{key: round(value, 4) for key, value in asdict(floor).items()},
            "wall_s": floor.wall_s,
        }
    return told


def parts_of(architecture: str, vocabulary: int) -> Parts | None:
    """Of a model of this kind; None for a shape that was not measured."""
    return {("llama", 128256): LLAMA_8B, ("qwen3", 151936): QWEN_06B}.get(
        (architecture, vocabulary)
    )
