"""Where a decode step's time goes on the device: kernels by total time, for a few batch sizes.

usage: gpu_profile.py llama8b|qwen06b ROWS [ROWS ...]
"""

# Torch's profiler is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import sys

import torch
from gpu_step import BLOCK_TOKENS, Driver, config, random_weights, sampling
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.cuda import CudaExecutor
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    """Prints the ten longest kernels of ten steps, per step."""
    weights = random_weights(config(sys.argv[1]), torch.device("cuda"))
    executor = CudaExecutor(weights)
    region = executor.block_bytes(BLOCK_TOKENS) * 256 * 32
    executor.start(ExecutorLimits(256, 8448, 16384, BLOCK_TOKENS, region, 2))
    driver = Driver(executor, 256)
    for argument in sys.argv[2:]:
        what, _, size = argument.partition(":")
        driver.steps(int(size or what), 8, sampling(0, 1)) if not size else driver.prefill(
            int(size), 1
        )
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            if size:
                count, wall = 1, driver.prefill(int(size), 1)
            else:
                count, wall = 14, driver.steps(int(what), 10, sampling(0, 1))
        events = [e for e in trace.key_averages() if e.device_time_total > 0]
        total = sum(e.device_time_total for e in events) / count / 1e3
        print(f"{sys.argv[1]} {argument}: wall {wall:.3f} ms, kernels {total:.3f} ms a step")
        for event in sorted(events, key=lambda e: -e.device_time_total)[:9]:
            each = event.device_time_total / count / 1e3
            print(f"   {each:8.3f} ms {event.count / count:7.1f} x  {event.key[:70]}")


if __name__ == "__main__":
    main()
