"""Asking for weights before they are read: a hint that a kernel gives while it waits for another."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def prefetch_rows(base, stride, size, count):
    """Asks for ``size`` bytes at each of ``count`` addresses ``stride`` bytes apart, a thread each.

    They come to the L2 cache; sizes and addresses are multiples of 16. For sm_90 and later.
    """
    zero = tl.program_id(0) * 0
    tl.inline_asm_elementwise(
        """{
        .reg .pred mine;
        .reg .u32 lane;
        .reg .u64 address;
        mov.u32 lane, %tid.x;
        setp.lt.u32 mine, lane, $4;
        cvt.u64.u32 address, lane;
        mad.lo.u64 address, address, $2, $1;
        mov.u32 $0, 0;
        @mine cp.async.bulk.prefetch.L2.global [address], $3;
        }""",
        "=r,l,l,r,r",
        [base.to(tl.int64), (zero + stride).to(tl.int64), zero + size, zero + count],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
