"""Where a decode step's time goes: the host's passes by part, the device's kernels by kind.

Kernels are told apart by name. What a step takes is the difference of two runs of one batch, so that
prompts do not count. The profiler of the device costs time itself: shares are good, sums a bit high.
"""

# Torch's profiler is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable
from typing import Final

from headrace_engine.api import Engine

LOOK_S: Final = 0.003
"""Between two looks at the newest pass."""
FEW, MANY = 4, 36
"""Tokens of each row in the two runs."""
KINDS: Final = (
    ("attention", re.compile(r"attention|_few_rows|_combine|_plan|_beginnings|^_rows|fmha|flash")),
    ("products", re.compile(r"nvjet|gemm|gemv|_product|cutlass|splitK", re.IGNORECASE)),
    ("norms, rope, swiglu", re.compile(r"_norm|_rope_store|_swiglu")),
    ("sampling", re.compile(r"argmax|_sample|_penalize|_bias|_count|topk|softmax")),
    ("messages and copies", re.compile(r"Mem|_prepare|_update_table|copy|fill|elementwise")),
)
"""The first that fits a kernel's name."""


def host_stages(engine: Engine, run: Callable[[], object]) -> dict[str, float]:
    """Medians of a pass's parts in milliseconds, while ``run`` runs."""
    seen: list[tuple[float, float, float]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            newest = engine.get_schedule_metrics()
            seen.append((newest.plan_s, newest.wait_s, newest.update_s))

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        run()
    finally:
        ended.set()
        looker.join()
    names = ("host_plan_ms", "host_wait_ms", "host_update_ms")
    parts = zip(*seen, strict=True) if seen else [(0.0,)] * len(names)
    return {name: 1e3 * statistics.median(part) for name, part in zip(names, parts, strict=True)}


def device_stages(run: Callable[[int], object]) -> dict[str, float]:
    """Milliseconds of a step by kind of kernel, of ``run(tokens of each row)``; needs a CUDA device."""
    few, many = _kernels(run, FEW), _kernels(run, MANY)
    stages = {
        f"device_{name}_ms": (many[name] - few.get(name, 0.0)) / (MANY - FEW) for name in many
    }
    busy = sum(stages.values()) - stages["device_wall_ms"]
    return {**stages, "device_gaps_ms": stages["device_wall_ms"] - busy}


def kind_of(kernel: str) -> str:
    """The stage that a kernel belongs to."""
    return next((name for name, pattern in KINDS if pattern.search(kernel)), "other")


def _kernels(run: Callable[[int], object], tokens: int) -> dict[str, float]:
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        began = time.perf_counter()
        run(tokens)
        torch.cuda.synchronize()
        wall_s = time.perf_counter() - began
    spent = dict.fromkeys([*(name for name, _ in KINDS), "other"], 0.0)
    for event in trace.key_averages():
        spent[kind_of(str(event.key))] += event.device_time_total / 1e3
    return {**spent, "wall": wall_s * 1e3}
