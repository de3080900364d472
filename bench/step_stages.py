"""Where a decode step's time goes: the host's passes by part, the device's kernels by kind.

Kernels are told apart by name. What a step takes is the difference of two runs of one batch, both longer
than its prompts take passes, so that prompts do not count. A kernel that begins while the one before
still runs has the time from that one's end. The profiler costs time itself: sums are a bit high.
"""

# Torch's profiler is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
import statistics
import threading
from collections.abc import Callable, Iterable
from typing import Final

from headrace_engine.api import Engine

LOOK_S: Final = 0.003
"""Between two looks at the newest pass."""
FEW, MANY = 32, 64
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
    """Medians of a pass's parts in milliseconds, of the passes that were seen while ``run`` ran."""
    seen: dict[tuple[float, float, float], None] = {}
    ended = threading.Event()

    def note() -> None:
        newest = engine.get_schedule_metrics()
        seen[newest.plan_s, newest.wait_s, newest.update_s] = None

    def look() -> None:
        while not ended.wait(LOOK_S):
            note()

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        run()
    finally:
        ended.set()
        looker.join()
    note()  # the last pass: a short run is over before anybody looks
    names = ("host_plan_ms", "host_wait_ms", "host_update_ms")
    parts = zip(*seen, strict=True)
    return {name: 1e3 * statistics.median(part) for name, part in zip(names, parts, strict=True)}


def device_stages(run: Callable[[int], object]) -> dict[str, float]:
    """Milliseconds of a step by kind of kernel, of ``run(tokens of each row)``; needs a CUDA device."""
    few, many = _kernels(run, FEW), _kernels(run, MANY)
    return {
        f"device_{name}_ms": (spent - few[name]) / (MANY - FEW) / 1e3
        for name, spent in many.items()
    }


def kind_of(kernel: str) -> str:
    """The stage that a kernel belongs to."""
    return next((name for name, pattern in KINDS if pattern.search(kernel)), "other")


def shares(kernels: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """Time by kind of (name, begin, end), and that in which nothing ran between the first and the last."""
    spent = dict.fromkeys([*(name for name, _ in KINDS), "other", "gaps"], 0.0)
    reached: float | None = None
    for name, begin, end in sorted(kernels, key=lambda kernel: kernel[1:]):
        reached = begin if reached is None else reached
        spent["gaps"] += max(0.0, begin - reached)
        spent[kind_of(name)] += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return spent


def _kernels(run: Callable[[int], object], tokens: int) -> dict[str, float]:
    """Microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run(tokens)
        torch.cuda.synchronize()
    return shares(
        (str(event.name), float(event.time_range.start), float(event.time_range.end))
        for event in trace.events() or []
        if event.device_type.name == "CUDA"
    )
