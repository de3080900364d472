"""Plain-torch twins of the kernels: slow, obvious, float32 inside. Tests compare against them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm over the last axis, rounded to ``x``'s type before the weight, as in the field."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (normed.to(x.dtype).float() * weight.float()).to(x.dtype)


def residual_norm(
    delta: Tensor | None, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The new residual, and its norm."""
    if delta is not None:
        residual = (residual.float() + delta.float()).to(residual.dtype)
    return residual, rms_norm(residual, weight, epsilon)


def embed_norm(
    tokens: Tensor, table: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Embedding rows, and their norm."""
    residual = table[tokens.long()]
    return residual, rms_norm(residual, weight, epsilon)


def rotate(x: Tensor, rope: Tensor, positions: Tensor) -> Tensor:
    """RoPE of ``x[tokens, heads, head_dim]`` by halves."""
    cosine, sine = rope[positions.long()].unbind(1)
    low, high = x.float().chunk(2, -1)
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up``, each factor rounded to the input's type."""
    gate, up = gate_up.chunk(2, -1)
    return (torch.nn.functional.silu(gate.float()).to(gate.dtype).float() * up.float()).to(up.dtype)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` in float32."""
    return x.float() @ weight.float().T


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """Causal attention of ``query[tokens, heads, head_dim]`` at positions ``first`` onwards.

    ``keys`` and ``values`` are ``[context, kv_heads, head_dim]``, position order.
    """
    tokens, heads, head_dim = query.shape
    group = heads // keys.shape[1]
    k = keys.float().repeat_interleave(group, 1)
    v = values.float().repeat_interleave(group, 1)
    score = torch.einsum("thd,chd->htc", query.float(), k) * head_dim**-0.5
    seen = torch.arange(len(keys))[None, :] <= first + torch.arange(tokens)[:, None]
    score = score.masked_fill(~seen.to(score.device), float("-inf"))
    return torch.einsum("htc,chd->thd", score.softmax(-1), v)


def gather_blocks(
    region: Tensor,
    offsets: Sequence[int],
    *,
    layer: int,
    kv_heads: int,
    block_tokens: int,
    head_dim: int,
) -> tuple[Tensor, Tensor]:
    """Keys and values ``[len(offsets) * block_tokens, kv_heads, head_dim]`` of blocks at item offsets."""
    half = kv_heads * block_tokens * head_dim
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for offset in offsets:
        start = offset + layer * 2 * half
        for kind, place in ((keys, start), (values, start + half)):
            block = region[place : place + half].view(kv_heads, block_tokens, head_dim)
            kind.append(block.transpose(0, 1))
    return torch.cat(keys), torch.cat(values)
