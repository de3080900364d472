"""Host cost of one pass: the whole engine core with an executor that costs nothing.

``python bench/pass_cost.py [--rows 256 1024] [--passes 1000]`` prints, and ends with as one line of
JSON:

* median and p99.9 of decode-only passes, with blocks of 16 and of 64 tokens, and beside them the
  *plain reference*: a scheduler that in every pass sorts all sequences, copies the allocator's state
  and plans every sequence again
* ``full_over_free``: the same pass where every new block takes the memory of an old one that nobody
  holds, which is how an engine runs after its first minutes, over one where memory is free
* ``changing_over_steady``: passes in which 1 % of the batch ends and as many begin, with prompts that
  are cached but for their last 16 tokens, over decode-only passes
* ``long/short``: a pass with sequences of 100,000 tokens over one with 1,000
* ``waiting``: what 10,000 waiting requests add to a pass
* ``cached_admission``: the pass that admits a prompt of 32,000 tokens which is fully cached
* ``metadata``: bytes of host memory per cache block

Budgets: 250 µs at 256 rows, 1,000 µs at 1,024; long/short within 1.1; waiting below 20 µs; admission
below 5 ms; metadata below 2 KiB.

Times are the thread's own, of the processor: a pass waits for nothing here, and what else the machine
does only counts as far as it empties the caches.

What is compared is measured in one process, in short turns, so that other load on the machine
meets both sides alike: believe ratios before microseconds. Collection of garbage is off during passes,
as it is in the engine's loop.

Measured on two shared cores. The first figure is the median of a quiet quarter of an hour (microseconds);
the ratios were found under load, by turns of the code then and now: before partial siblings, and with them
(a block carries more, and its parent a list of children).

    256 rows     blocks of 16: 323, times 0.77, 0.82     of 64: 258, times 0.77, 0.84
    1,024 rows   blocks of 16: 1,279, times 0.74, 0.95   of 64: 653, times 0.80, 0.78
    long/short   1.06        waiting  7-15        metadata  1,211 and 1,404 bytes
    admission    2.7 ms (blocks of 16), 1.4 ms (of 64)
    plain reference  9 to 22 times as long
    changing     3.6 times a steady pass at 256 rows with blocks of 16: a sequence of 60 blocks that ends
                 and one that begins cost about 0.7 ms together under that load. It is not within a tenth.

What was predicted and came true: page masks as one large integer cost by the pool's size, not by what
is done (two-level masks do not); half of an admission was hashing what is known (identity finds it
without); a decode-only batch need not make its constant columns again. What nobody predicted: numpy takes
five times as long for an index of int32 as for one of its own integers, and ten times for two indices as for
one; that was a fifth of a pass. Page faults and growing dictionaries are most of the slowest passes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from numpy.typing import NDArray

VOCABULARY = 32_000
BLOCK_BYTES = 4096
TURN = 20
"""Passes of one side before the other has its turn."""
TAIL = 256
"""Tokens at a prompt's end that are its own; what is before them is shared by all."""


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


class Engine:
    """One engine with ``rows`` sequences that decode and will not end."""

    def __init__(
        self,
        rows: int,
        context: int,
        *,
        block_tokens: int,
        passes: int,
        spare: int = 0,
        extra_blocks: int = 0,
        stay: int | None = None,
    ) -> None:
        """``spare`` slots and ``extra_blocks`` blocks are left to what the bench adds.

        ``stay`` is for how many tokens a sequence stays, one after the other; None: for all passes.
        """
        session = context + block_tokens + 2 * passes + 256
        chunk = context + rows * (TAIL + 2 * block_tokens)
        self.rows = rows
        self._context = context
        self._random = np.random.default_rng(0)
        self._shared = self._random.integers(0, VOCABULARY, context, dtype=np.int32)
        settings = SchedulerSettings(
            max_batch=rows + spare,
            max_waiting=20_000,
            batch_tokens=chunk + rows + spare,
            prefill_chunk_tokens=chunk,
            session_tokens=session,
            block_tokens=block_tokens,
            pool_blocks=-(-context // block_tokens)
            + (rows + spare) * (-(-(TAIL + 2 * passes + 512) // block_tokens) + 2)
            + extra_blocks,
        )
        shape = ModelShape("free", "free", VOCABULARY, 1 << 30, "free-1", "none", 64)
        self.door = EngineGateway()
        executor = FreeExecutor(executor_limits(settings, BLOCK_BYTES))
        self.loop = EngineLoop(self.door, executor, settings, SystemClock(), shape)
        self._next = 1
        for row in range(rows):
            new = 2 * passes + 64 if stay is None else stay + 1 + row * stay // rows
            self.push(self.prompt(row % block_tokens), new)
        # Others run besides until all have their prompt, so a few rows are ahead of the rest.
        while self.loop.metrics.get().pass_tokens != rows or not self._all_decode():
            self.step()
        self._stay = stay
        for _ in range(20):
            self.step()

    def prompt(self, longer: int = 0) -> NDArray[Any]:
        """Shared but for its last tokens."""
        own = self._random.integers(0, VOCABULARY, TAIL + longer, dtype=np.int32)
        return np.concatenate([self._shared[: self._context - TAIL], own])

    def push(self, prompt: NDArray[Any], new_tokens: int) -> RequestHandle:
        """One request."""
        handle = RequestHandle(self._next)
        self._next += 1
        sampling = Sampling(max_new_tokens=new_tokens, stop_token_ids=frozenset([2]))
        self.door.push(Request(id=str(handle), handle=handle, prompt=prompt, sampling=sampling))
        return handle

    def step(self) -> None:
        """One pass; what it says is thrown away."""
        self.loop.step()
        self.door.take_outputs(0)

    def step_and_replace(self) -> None:
        """One pass; for each sequence that ended another is pushed."""
        assert self._stay is not None
        self.loop.step()
        for outputs in self.door.take_outputs(0) or ():
            for _ in outputs.ends:
                own = self._random.integers(0, VOCABULARY, 16, dtype=np.int32)
                prompt = np.concatenate([self._shared[: self._context - TAIL], own])
                self.push(prompt, self._stay)

    def fill(self) -> None:
        """Memory that is free goes to blocks that nobody holds."""
        size, before = self.loop.scheduler.pool.block_tokens, -1
        while (free := self.loop.metrics.get().free_blocks) and free != before:
            before = free
            tokens = min(free, self._context // size) * size
            self.push(self._random.integers(0, VOCABULARY, tokens, dtype=np.int32), 1)
            for _ in range(4):
                self.step()

    def _all_decode(self) -> bool:
        metrics = self.loop.metrics.get()
        return metrics.running == self.rows and not self.loop.scheduler.residents.prefilling


@dataclass
class PlainSequence:
    """A sequence of the reference."""

    number: int
    length: int
    blocks: list[tuple[int, bool]]
    """(block, valid)."""
    tokens: list[int]
    band: int = 1


class Plain:
    """The reference: what one writes first. Every pass sorts, copies and plans everything.

    It does less than the engine (no outputs, no publication, no reasons), and only decodes.
    """

    def __init__(self, rows: int, context: int, block_tokens: int) -> None:
        self._size = block_tokens
        count = -(-context // block_tokens) + 1
        self._free = list(range(rows * count, rows * (count + 400)))
        self._sequences = [
            PlainSequence(
                number,
                context + number % block_tokens,
                [(number * count + i, True) for i in range(count)],
                [0] * context,
            )
            for number in range(rows)
        ]
        self.batch = np.zeros((2, 0), np.int32)
        self.tables = np.zeros(0, np.int64)

    def step(self) -> None:
        """Plans, runs and updates one pass."""
        order = sorted(self._sequences, key=lambda s: (s.band, s.number))
        free = list(self._free)
        plans: list[tuple[PlainSequence, int | None]] = []
        for sequence in order:
            valid = 0
            for _, is_valid in sequence.blocks:
                if not is_valid:
                    break
                valid += 1
            full = sequence.length >= valid * self._size
            plans.append((sequence, free.pop() if full else None))
        self._free = free
        tables: list[int] = []
        for sequence, new in plans:
            if new is not None:
                sequence.blocks.append((new, True))
            tables += [block for block, _ in sequence.blocks]
        self.batch = np.array([[s.number for s in order], [s.length for s in order]], np.int32)
        self.tables = np.array(tables, np.int64)
        for sequence, _ in plans:
            sequence.tokens.append(7)
            sequence.length += 1


def in_turn(steps: dict[str, Callable[[], None]], passes: int) -> dict[str, NDArray[Any]]:
    """Nanoseconds of each pass of each side, in turns: ``[turn, pass of the turn]``.

    The first passes of a turn find the processor's caches full of the other side's, and do not count.
    """
    turns = passes // TURN
    took = {name: np.zeros((turns, TURN)) for name in steps}
    gc.collect()
    gc.freeze()
    gc.disable()
    for turn in range(turns):
        for name, step in steps.items():
            for i in range(-2, TURN):
                began = time.thread_time_ns()
                step()
                if i >= 0:
                    took[name][turn, i] = time.thread_time_ns() - began
    gc.enable()
    gc.unfreeze()
    return took


def ratio(over: NDArray[Any], under: NDArray[Any]) -> float:
    """Of the medians of each turn, the median."""
    return round(float(np.median(np.median(over, axis=1) / np.median(under, axis=1))), 3)


def figures(nanoseconds: NDArray[Any]) -> dict[str, float]:
    """In microseconds."""
    return {
        "median_us": round(float(np.median(nanoseconds)) / 1000, 1),
        "best_tenth_us": round(float(np.quantile(nanoseconds, 0.1)) / 1000, 1),
        "p999_us": round(float(np.quantile(nanoseconds, 0.999)) / 1000, 1),
    }


def steady(rows: int, context: int, block_tokens: int, passes: int) -> dict[str, float]:
    """A decode-only pass, and how many of it the plain reference takes."""
    engine = Engine(rows, context, block_tokens=block_tokens, passes=passes)
    plain = Plain(rows, context, block_tokens)
    took = in_turn({"engine": engine.step, "plain": plain.step}, passes)
    assert engine.loop.metrics.get().pass_tokens == rows
    return {**figures(took["engine"]), "plain_ratio": ratio(took["plain"], took["engine"])}


def full_over_free(rows: int, block_tokens: int, passes: int) -> float:
    """A decode-only pass whose new blocks take the memory of old ones: median of turns."""
    free = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes, spare=1)
    full = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes, spare=1)
    full.fill()
    evicted = full.loop.metrics.get().evictions
    took = in_turn({"free": free.step, "full": full.step}, passes)
    assert full.loop.metrics.get().evictions > evicted, "memory was free"
    assert free.loop.metrics.get().evictions == 0
    return ratio(took["full"], took["free"])


def changing_over_steady(rows: int, block_tokens: int, passes: int) -> dict[str, float]:
    """Passes in which 1 % of the rows end and begin, over decode-only ones."""
    steady = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes)
    changing = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes, stay=100)
    for _ in range(200):
        changing.step_and_replace()
    finished = changing.loop.metrics.get().finished["length"]
    took = in_turn({"steady": steady.step, "changing": changing.step_and_replace}, passes)
    ended = changing.loop.metrics.get().finished["length"] - finished
    made = passes // TURN * (TURN + 2)
    return {
        "ratio": ratio(took["changing"], took["steady"]),
        "share_per_pass": round(ended / made / rows, 4),
        **figures(took["changing"]),
    }


def long_over_short(rows: int, block_tokens: int, passes: int) -> float:
    """A pass with sequences of 100,000 tokens over one with 1,000: median of turns."""
    short = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes)
    long = Engine(rows, 100_000, block_tokens=block_tokens, passes=passes)
    took = in_turn({"short": short.step, "long": long.step}, passes)
    return ratio(took["long"], took["short"])


def waiting_adds_us(rows: int, passes: int) -> float:
    """Microseconds that 10,000 waiting requests add to a pass: median of turns."""
    alone = Engine(rows, 1_000, block_tokens=64, passes=passes)
    crowded = Engine(rows, 1_000, block_tokens=64, passes=passes)
    for _ in range(10_000):
        crowded.push(np.arange(100, dtype=np.int32), 16)
    crowded.step()
    took = in_turn({"alone": alone.step, "crowded": crowded.step}, passes)
    assert crowded.loop.metrics.get().waiting == 10_000
    more = np.median(took["crowded"], axis=1) - np.median(took["alone"], axis=1)
    return round(float(np.median(more)) / 1000, 1)


def cached_admission_ms(block_tokens: int, tokens: int = 32_000) -> dict[str, float]:
    """Milliseconds of the pass that admits a fully cached prompt."""
    engine = Engine(8, tokens, block_tokens=block_tokens, passes=200, spare=1)
    prompt = engine.prompt()[:tokens]
    took: list[float] = []
    for _ in range(20):
        engine.push(prompt, 1)
        gc.disable()
        began = time.thread_time_ns()
        engine.step()
        took.append((time.thread_time_ns() - began) / 1e6)
        gc.enable()
        for _ in range(3):
            engine.step()
    counters = engine.loop.metrics.get()
    assert counters.finished.get("length") == len(took)
    return {"median": round(float(np.median(took[1:])), 2), "best": round(min(took[1:]), 2)}


def metadata_bytes(block_tokens: int, blocks: int = 4_000) -> int:
    """Bytes of host memory per block of a prompt that nobody shares, its tokens excluded."""
    tokens = blocks * block_tokens
    engine = Engine(1, tokens, block_tokens=block_tokens, passes=100, spare=1, extra_blocks=blocks)
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, tokens, dtype=np.int32)
    tracemalloc.start()
    engine.push(prompt, 50)
    for _ in range(3):
        engine.step()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used // blocks


def main() -> None:
    """Prints every figure, then one line of JSON."""
    parser = argparse.ArgumentParser(description="Host cost of one pass.")
    parser.add_argument("--rows", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--context", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--passes", type=int, default=1000)
    parser.add_argument("--only", choices=["steady", "change", "long", "rest"], help="a part of it")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    shown: dict[str, object] = {}

    def show(name: str, figure: object) -> None:
        shown[name] = figure
        print(f"{name}: {figure}", flush=True)

    for block_tokens in options.block_tokens:
        blocks = f"blocks of {block_tokens}"
        for rows in options.rows:
            if options.only in (None, "steady"):
                figure = steady(rows, options.context, block_tokens, options.passes)
                show(f"{rows} rows, {blocks}", figure)
        if options.only in (None, "change"):
            rows = options.rows[0]
            changing = changing_over_steady(rows, block_tokens, options.passes)
            show(f"changing_over_steady, {blocks}", changing)
            full = full_over_free(rows, block_tokens, options.passes)
            show(f"full_over_free, {blocks}", full)
        if options.only in (None, "long"):
            rows = options.rows[0]
            show(f"long/short, {blocks}", long_over_short(rows, block_tokens, options.passes))
        if options.only in (None, "rest"):
            show(f"cached_admission_ms, {blocks}", cached_admission_ms(block_tokens))
            show(f"metadata_bytes, {blocks}", metadata_bytes(block_tokens))
    if options.only in (None, "rest"):
        show("waiting_adds_us", waiting_adds_us(options.rows[0], options.passes))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        json.dumps(
            {
                "bench": "pass_cost",
                "commit": commit,
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}",
                "python": platform.python_version(),
                "context": options.context,
                "figures": shown,
            }
        )
    )


if __name__ == "__main__":
    main()
