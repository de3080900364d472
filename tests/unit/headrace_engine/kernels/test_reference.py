"""The twins against torch's own words for the same things."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from headrace_engine.kernels import reference

pytestmark = pytest.mark.torch


def test_rms_norm_equals_that_of_torch() -> None:
    x, weight = torch.randn(5, 24), torch.randn(24)
    expected = torch.nn.functional.rms_norm(x, (24,), weight, 1e-5)
    assert torch.allclose(reference.rms_norm(x, weight, 1e-5), expected, atol=1e-6)


def test_rope_turns_pairs_and_keeps_their_length() -> None:
    x = torch.randn(3, 2, 8)
    angles = torch.rand(3, 4) * 6
    turned = reference.rope(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(3, 4), angles)[:, None]
    assert torch.allclose(torch.complex(turned[..., :4], turned[..., 4:]), pairs, atol=1e-5)


def test_attention_sees_no_later_position_and_shares_heads_in_groups() -> None:
    query = torch.randn(3, 4, 8)
    keys, values = torch.randn(7, 2, 8), torch.randn(7, 2, 8)
    out = reference.attention(query, keys, values, 4)
    for token in range(3):
        for head in range(4):
            seen = slice(0, 4 + token + 1)
            scores = keys[seen, head // 2] @ query[token, head] / 8**0.5
            expected = torch.softmax(scores, 0) @ values[seen, head // 2]
            assert torch.allclose(out[token, head], expected, atol=1e-5)


def test_a_narrow_linear_rounds_its_input_and_adds_its_bias_in_float32() -> None:
    x, weight, bias = torch.randn(3, 16), torch.randn(5, 16).bfloat16(), torch.randn(5)
    out = reference.linear(x, weight, bias)
    exact = x.bfloat16().double() @ weight.double().T + bias
    assert out.dtype == torch.float32
    assert torch.allclose(out.double(), exact, atol=0.1)


def test_silu_mul() -> None:
    gate, up = torch.randn(9), torch.randn(9)
    expected = gate / (1 + torch.exp(-gate)) * up
    assert torch.allclose(reference.silu_mul(gate, up), expected, atol=1e-6)
