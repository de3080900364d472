"""What the journal costs a pass, and what a snapshot costs: decode-only, executor for free.

``python bench/journal.py [--rows 256]`` runs pairs of short stretches, without and with a
journal, in turns, so that a busy machine slows both. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time

import numpy as np
from headrace_engine.executor.base import ModelShape
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.journal import BLOCKS_A_PASS, Journal
from headrace_engine.scheduler.journal_snapshot import Taking
from headrace_engine.scheduler.scheduler import Scheduler
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from pass_cost import BLOCK_BYTES, VOCABULARY, FreeExecutor
from report import commit

BLOCK_TOKENS = 16


class Steady:
    """An engine in which ``rows`` sequences decode."""

    def __init__(self, rows: int, passes: int, journal: Journal | None) -> None:
        session = 1000 + BLOCK_TOKENS + 2 * passes + 64
        settings = SchedulerSettings(
            max_batch=rows,
            max_waiting=rows,
            batch_tokens=rows * 1100,
            prefill_chunk_tokens=rows * 1090,
            session_tokens=session,
            block_tokens=BLOCK_TOKENS,
            pool_blocks=rows * (session // BLOCK_TOKENS + 2),
        )
        shape = ModelShape("free", "free", VOCABULARY, 1 << 30, "free-1", "none", 64)
        self.door = EngineGateway()
        executor = FreeExecutor(executor_limits(settings, BLOCK_BYTES))
        self.loop = EngineLoop(self.door, executor, settings, SystemClock(), shape, journal=journal)
        random = np.random.default_rng(0)
        for handle in range(1, rows + 1):
            prompt = random.integers(0, VOCABULARY, 1000 + handle % 16, dtype=np.int32)
            sampling = Sampling(max_new_tokens=2 * passes + 32)
            self.door.push(Request(str(handle), RequestHandle(handle), prompt, sampling))
        while self.loop.metrics.get().pass_tokens != rows:
            self.step()

    def step(self) -> float:
        """One pass; its CPU time in microseconds."""
        began = time.thread_time_ns()
        self.loop.step()
        took = time.thread_time_ns() - began
        self.door.take_outputs(0)
        return took / 1000


def snapshot_parts_us(scheduler: Scheduler) -> dict[str, float]:
    """What a snapshot adds to the pass that begins it, to those between, and to the last."""

    def took(since: int) -> float:
        return round((time.thread_time_ns() - since) / 1000, 1)

    began = time.thread_time_ns()
    taking = Taking(scheduler)
    first, between, whole = took(began), list[float](), False
    while not whole:
        began = time.thread_time_ns()
        whole = taking.advance(BLOCKS_A_PASS)
        between.append(took(began))
    began = time.thread_time_ns()
    taking.finish()
    return {
        "snapshot_begin_us": first,
        "snapshot_pass_us": statistics.median(between),
        "snapshot_passes": len(between),
        "snapshot_end_us": took(began),
    }


def main() -> None:
    """Prints a line per size, then one of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[256])
    parser.add_argument("--passes", type=int, default=1000)
    options = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    for rows in options.rows:
        journal = Journal(1 << 30)
        engines = Steady(rows, options.passes, None), Steady(rows, options.passes, journal)
        gc.collect()
        gc.freeze()
        gc.disable()
        weight = journal.segments[-1].weight
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.passes // 20):
            for engine, took in zip(engines, times, strict=True):
                took += [engine.step() for _ in range(20)]
        gc.enable()
        without, with_it = map(statistics.median, times)
        scheduler = engines[1].loop.scheduler
        parts = snapshot_parts_us(scheduler)
        figure = {
            "without_us": round(without, 1),
            "with_us": round(with_it, 1),
            "added_share": round(with_it / without - 1, 4),
            "bytes_per_pass": round((journal.segments[-1].weight - weight) / options.passes, 1),
            **parts,
            "snapshot_blocks": scheduler.pool.alive,
        }
        figures[f"rows={rows}"] = figure
        print(f"{rows} rows: {figure}")
    print(json.dumps({"bench": "journal", "commit": commit(), "machine": platform.machine(),
                      "python": platform.python_version(), "figures": figures}))  # fmt: skip


if __name__ == "__main__":
    main()
