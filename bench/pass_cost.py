"""Host cost of one pass: the whole engine core with an executor that costs nothing.

``python bench/pass_cost.py [--rows 256 1024] [--passes 2000]`` prints medians and p99.9 of a
decode-only steady state, and ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import time
from collections import deque

import numpy as np
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock

VOCABULARY = 32_000
BLOCK_BYTES = 4096


class FreeExecutor:
    """Answers each batch with constant tokens, at once: what remains is the host's cost."""

    def __init__(self, limits: ExecutorLimits) -> None:
        self.limits = limits
        self._inside: deque[BatchData] = deque()
        self._tokens = np.full(limits.slots, 7, np.int32)
        self._failed = np.zeros(limits.slots, np.bool_)

    def submit(self, batch: BatchData) -> None:
        """Keeps the batch."""
        self._inside.append(batch)

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        """The oldest batch, answered."""
        batch = self._inside.popleft()
        count = batch.generating
        batch.output = BatchOutput(self._tokens[:count], self._failed[:count])
        return batch


def make_loop(
    rows: int, context: int, block_tokens: int, passes: int, phases: int
) -> tuple[EngineLoop, EngineGateway, SchedulerSettings]:
    """An engine with room for everything the bench asks of it."""
    session = context + 2 * passes + 64
    settings = SchedulerSettings(
        max_batch=rows,
        max_waiting=max(rows, 1),
        batch_tokens=rows * (context + 2 * block_tokens) + rows,
        prefill_chunk_tokens=rows * (context + 2 * block_tokens),
        session_tokens=session,
        block_tokens=block_tokens,
        pool_blocks=rows * (-(-session // block_tokens) + 1),
        phases=phases,
    )
    shape = ModelShape("free", "free", VOCABULARY, 1 << 30, "free-1", "none", 64)
    door = EngineGateway()
    executor = FreeExecutor(executor_limits(settings, BLOCK_BYTES))
    return EngineLoop(door, executor, settings, SystemClock(), shape), door, settings


def measure(
    rows: int, context: int, *, block_tokens: int, passes: int, phases: int
) -> dict[str, float]:
    """Microseconds per pass: median and p99.9 over ``passes`` decode-only passes."""
    loop, door, _ = make_loop(rows, context, block_tokens, passes, phases)
    random = np.random.default_rng(0)
    for handle in range(1, rows + 1):
        prompt = random.integers(0, VOCABULARY, context + handle % block_tokens, dtype=np.int32)
        sampling = Sampling(max_new_tokens=2 * passes + 32, stop_token_ids=frozenset([2]))
        door.push(
            Request(id=str(handle), handle=RequestHandle(handle), prompt=prompt, sampling=sampling)
        )
    while loop.metrics.get().running < rows or loop.metrics.get().pass_tokens != rows:
        loop.step()
        door.take_outputs(0)
    for _ in range(50):
        loop.step()
        door.take_outputs(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    took, worked = np.zeros(passes), np.zeros(passes)
    for i in range(passes):
        began, worked_before = time.perf_counter_ns(), time.thread_time_ns()
        loop.step()
        worked[i] = time.thread_time_ns() - worked_before
        took[i] = time.perf_counter_ns() - began
        door.take_outputs(0)
    gc.enable()
    assert loop.metrics.get().pass_tokens == rows
    return {
        "median_us": round(float(np.median(took)) / 1000, 1),
        "p999_us": round(float(np.quantile(took, 0.999)) / 1000, 1),
        "cpu_median_us": round(float(np.median(worked)) / 1000, 1),
    }


def main() -> None:
    """Prints a line per size, then one of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--context", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--passes", type=int, default=1000)
    parser.add_argument("--phases", type=int, default=2)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for block_tokens in options.block_tokens:
        for rows in options.rows:
            figure = measure(
                rows,
                options.context,
                block_tokens=block_tokens,
                passes=options.passes,
                phases=options.phases,
            )
            figures[f"rows={rows} block_tokens={block_tokens}"] = figure
            print(
                f"{rows:5d} rows, blocks of {block_tokens:3d}: median {figure['median_us']:8.1f} µs, p99.9 {figure['p999_us']:8.1f} µs, "
                f"CPU {figure['cpu_median_us']:8.1f} µs"
            )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        json.dumps(
            {
                "bench": "pass_cost",
                "commit": commit,
                "machine": platform.machine(),
                "python": platform.python_version(),
                "context": options.context,
                "phases": options.phases,
                "figures": figures,
            }
        )
    )


if __name__ == "__main__":
    main()
