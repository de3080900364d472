"""Optional per-head RMSNorm of queries and keys, RoPE, and the KV write, in one launch a layer.

Shapes   qkv[tokens, (heads + 2 kv_heads) head_dim]; queries and keys are rotated in place
         rope[positions, 2, head_dim / 2] float32: cosines, then sines
         positions[tokens] int32; targets[tokens] int64: item offset in the region of the token's
         row in layer 0, key head 0, or -1 where KV must not be written
         region: a block holds [layer, key | value, kv_head, block_token, head_dim]
Dtypes   16- or 32-bit floats; norm and rotation in float32
Order    one program a token and head, or a token and some of its heads; the norm is Triton's tree over head_dim
Twin     reference.rope_store
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from headrace_engine.kernels.gpu.launch import DEPENDENT_LAUNCH, OPTIONS, power_of_two

_MANY_TOKENS = 64
_LINES = 16
"""Heads of a program where tokens are many: divides the width of common shapes, 16 bytes a thread."""
_ALIGNED = tl.constexpr(16)
"""Items that every target is a multiple of. The compiler cannot know it of what it reads from memory, and
would store every element by itself."""


@triton.jit
def _rope_store(
    qkv,
    rope,
    positions,
    targets,
    query_weight,
    key_weight,
    region,
    layer_offset,
    head_stride,
    value_offset,
    epsilon,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    NORM: tl.constexpr,
    LINES: tl.constexpr,
    PDL: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * LINES + tl.arange(0, LINES)
    half = tl.arange(0, HALF)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    kind = qkv.dtype.element_ty
    width: tl.constexpr = HEADS + 2 * KV_HEADS
    real = (head < width)[:, None]
    start = qkv + token * (width * 2 * HALF) + head[:, None] * (2 * HALF) + half[None, :]
    low = tl.load(start, real, 0.0)
    high = tl.load(start + HALF, real, 0.0)
    target = tl.multiple_of(tl.load(targets + token), _ALIGNED)
    turned = (head < HEADS + KV_HEADS)[:, None]
    x = low.to(tl.float32)
    y = high.to(tl.float32)
    if NORM:
        square = tl.sum(x * x, 1) + tl.sum(y * y, 1)
        inverse = tl.rsqrt(square / (2 * HALF) + epsilon)[:, None]
        is_query = (head < HEADS)[:, None]
        first = tl.where(
            is_query, tl.load(query_weight + half)[None, :], tl.load(key_weight + half)[None, :]
        )
        second = tl.where(
            is_query,
            tl.load(query_weight + HALF + half)[None, :],
            tl.load(key_weight + HALF + half)[None, :],
        )
        x = ((x * inverse).to(kind).to(tl.float32) * first.to(tl.float32)).to(kind).to(tl.float32)
        y = ((y * inverse).to(kind).to(tl.float32) * second.to(tl.float32)).to(kind).to(tl.float32)
    angles = rope + tl.load(positions + token).to(tl.int64) * (2 * HALF)
    cosine = tl.load(angles + half)[None, :]
    sine = tl.load(angles + HALF + half)[None, :]
    low = tl.where(turned, (x * cosine - y * sine).to(kind), low)
    high = tl.where(turned, (y * cosine + x * sine).to(kind), high)
    tl.store(start, low, turned & real)
    tl.store(start + HALF, high, turned & real)
    kept = (head >= HEADS)[:, None] & real & (target >= 0)
    is_value = (head >= HEADS + KV_HEADS).to(tl.int64)
    kv_head = head - HEADS - is_value * KV_HEADS
    place = target + layer_offset + is_value * value_offset + kv_head * head_stride
    place = region + place[:, None] + half[None, :]
    tl.store(place, low, kept)
    tl.store(place + HALF, high, kept)


def rope_store(
    qkv: torch.Tensor,
    rope: torch.Tensor,
    positions: torch.Tensor,
    targets: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor] | None,
    region: torch.Tensor,
    *,
    layer: int,
    heads: int,
    kv_heads: int,
    block_tokens: int,
    epsilon: float,
) -> None:
    """Rotates queries and keys in place and writes keys and values of ``layer`` to their blocks."""
    head_dim = rope.shape[2] * 2
    head_stride = block_tokens * head_dim
    query_weight, key_weight = (rope, rope) if norms is None else norms
    width = heads + 2 * kv_heads
    # Few tokens: a program a head, so that all multiprocessors help.
    lines = 1 if qkv.shape[0] < _MANY_TOKENS else min(_LINES, power_of_two(width))
    _rope_store[(qkv.shape[0], triton.cdiv(width, lines))](
        qkv,
        rope,
        positions,
        targets,
        query_weight,
        key_weight,
        region,
        layer * 2 * kv_heads * head_stride,
        head_stride,
        kv_heads * head_stride,
        epsilon,
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        NORM=norms is not None,
        LINES=lines,
        PDL=DEPENDENT_LAUNCH,
        num_warps=1 if lines == 1 else 4,
        **OPTIONS,
    )
