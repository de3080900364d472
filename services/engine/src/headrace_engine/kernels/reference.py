"""Plain-torch twins of the native kernels: what they must compute, and what runs without a compiler.

Everything here is float32 unless a weight is stored narrower; sums are torch's own order.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``x[..., size]`` scaled to unit mean square, times ``weight[size]``."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)
    return weight * (x * scale)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x[tokens, inputs] @ weight[outputs, inputs].T + bias``, float32 out."""
    y = functional.linear(x.to(weight.dtype), weight).float()
    return y if bias is None else y + bias


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``."""
    return functional.silu(gate) * up


def rope(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotates ``x[tokens, heads, head_dim]``: the first half of a head pairs with its second half.

    ``cosines`` and ``sines`` are ``[tokens, head_dim // 2]``.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cosines, sines = cosines[:, None, :], sines[:, None, :]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


def attention(query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """Causal attention of ``query[tokens, heads, head_dim]`` at positions ``first ..``.

    ``keys`` and ``values`` are ``[positions, kv_heads, head_dim]`` from position 0; query heads
    share key-value heads in consecutive groups. Returns ``[tokens, heads, head_dim]``.
    """
    tokens, heads, head_dim = query.shape
    groups = heads // keys.shape[1]
    positions = torch.arange(keys.shape[0])
    mask = positions[None, :] <= positions[first : first + tokens, None]
    keys = keys.repeat_interleave(groups, 1).transpose(0, 1)
    values = values.repeat_interleave(groups, 1).transpose(0, 1)
    out = functional.scaled_dot_product_attention(
        query.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=head_dim**-0.5
    )
    return out[0].transpose(0, 1)
