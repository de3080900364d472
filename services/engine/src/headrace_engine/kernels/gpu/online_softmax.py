"""Softmax over keys that come tile by tile: the step that every attention kernel takes.

State    highest, the largest scaled score so far; mass, the sum of ``exp2(score - highest)``; total,
         the values weighted so. Scores are in units of log2: their scale carries log2(e)
Forms    ``fold_narrow`` has keys in rows and the few queries in columns, ``fold_wide`` queries in
         rows and keys in columns. Whichever side is narrow is then the one that may be 8 wide
Dtypes   float32, but for values and the weights that multiply them
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fold_narrow(score, value, highest, mass, total):
    """One tile more: ``score[keys, queries]`` scaled, ``value[keys, dim]``, ``total[dim, queries]``.

    Of each query at least one key of the tiles so far must be visible.
    """
    top = tl.maximum(highest, tl.max(score, 0))
    shrink = tl.exp2(highest - top)
    share = tl.exp2(score - top[None, :])
    mass = mass * shrink + tl.sum(share, 0)
    total = total * shrink[None, :] + tl.dot(
        tl.trans(value), share.to(value.dtype), input_precision="ieee"
    )
    return top, mass, total


@triton.jit
def fold_wide(score, value, highest, mass, total, scale, MASKED: tl.constexpr):
    """One tile more: ``score[queries, keys]`` not scaled yet, ``total[queries, dim]``.

    ``MASKED`` allows queries that have seen no key so far.
    """
    top = tl.maximum(highest, tl.max(score, 1) * scale)
    floor = top
    if MASKED:
        # A query that has seen nothing yet keeps -inf: its exponent must not become NaN.
        floor = tl.where(top == float("-inf"), 0.0, top)
    shrink = tl.exp2(highest - floor)
    share = tl.exp2(score * scale - floor[:, None])
    mass = mass * shrink + tl.sum(share, 1)
    total = tl.dot(share.to(value.dtype), value, total * shrink[:, None], input_precision="ieee")
    return top, mass, total


@triton.jit
def merge_narrow(weight, part, highest, mass, total):
    """Adds what another program found: ``part[dim, queries]`` is its result, divided by its mass,
    and ``weight[queries]`` the log2 of that mass at its scores' own scale; -inf for nothing."""
    top = tl.maximum(highest, weight)
    shrink = tl.exp2(highest - top)
    share = tl.exp2(weight - top)
    return top, mass * shrink + share, total * shrink[None, :] + part * share[None, :]
