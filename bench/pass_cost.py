"""Host cost of one pass: the whole engine core with an executor that costs nothing.

``python bench/pass_cost.py`` prints every figure, and ends with all of them as one line of JSON, in
about a minute; ``--quick`` takes a third of it, and measures 256 rows where there is a choice. What the figures
mean, what was aimed at, and what was found is in ``bench/README.md``.

Times are the thread's own, of the processor: a pass waits for nothing here, and what else the machine
does only counts as far as it empties the caches. What is compared is measured in one process, in short
turns, so that other load meets both sides alike: believe ratios before microseconds. Garbage is
collected as in the engine's loop, and where that happens inside a pass it counts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.garbage import Garbage
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.batch import BatchData, BatchOutput
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from numpy.typing import NDArray
from report import commit

VOCABULARY = 32_000
BLOCK_BYTES = 4096
TURN = 20
"""Passes of one side before the other has its turn."""
WARM = 4
"""Passes of a turn before those that count."""
FILLERS = 32
"""Prompts at once that fill memory."""
PLAIN_PASSES = 40
"""Of the plain reference, which takes milliseconds."""
TAIL = 256
"""Tokens at a prompt's end that are its own; what is before them is shared by all."""
WARM_UP_S = 0.3
SLOWER = 1.1
"""Times the yardstick's best: a turn before or behind which it takes longer does not count."""
SETTLE = 100
"""Passes in which every row has its prompt."""
FRESH = 40
"""Tokens of a short prompt that nobody had before."""
STAY = 100
"""Tokens that a sequence decodes where 1 % of the batch changes in a pass."""
BRIEF = 25
"""Tokens that one of those decodes who come and go beside sequences that stay."""
NEAR = (-2, -1, 0, 1)
"""Passes before and after the one in which a sequence begins in which it costs more than a row."""


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
        ends: Sequence[int] = (),
    ) -> None:
        """``spare`` slots and ``extra_blocks`` blocks are left to what the bench adds.

        ``ends`` are how many sequences end in each pass from ``SETTLE`` passes on, all of them
        together; empty: none does.
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
        stays = [SETTLE + at for at, count in enumerate(ends) for _ in range(count)]
        for row in range(rows):
            new = stays[row] if ends else 2 * passes + 64
            self.push(self.prompt(row % block_tokens), new)
        # Others run besides until all have their prompt, so a few rows are ahead of the rest.
        while self.loop.metrics.get().pass_tokens != rows or not self._all_decode():
            self.step()
            assert not self.loop.metrics.get().finished, "rows ended before all had begun"
        for _ in range(20):
            self.step()

    def prompt(self, longer: int = 0) -> NDArray[Any]:
        """Shared but for its last tokens."""
        own = self._random.integers(0, VOCABULARY, TAIL + longer, dtype=np.int32)
        return np.concatenate([self._shared[: self._context - TAIL], own])

    def push(self, prompt: NDArray[Any], new_tokens: int, tenant: str = "") -> None:
        """One request."""
        self.door.push(self.request(prompt, new_tokens, tenant))

    def request(self, prompt: NDArray[Any], new_tokens: int, tenant: str = "") -> Request:
        """One that nobody has pushed yet."""
        handle = RequestHandle(self._next)
        self._next += 1
        sampling = Sampling(max_new_tokens=new_tokens, stop_token_ids=frozenset([2]))
        return Request(str(handle), handle, prompt, sampling, tenant=tenant)

    def step(self) -> None:
        """One pass; what it says is thrown away."""
        self.loop.step()
        self.door.take_outputs(0)

    def like(self, shared: int, own: int, stay: int = STAY) -> Request:
        """A request for ``stay`` tokens: ``shared`` that are cached, and about ``own`` new ones."""
        own += int(self._random.integers(-own // 2, own // 2 + 1))
        new = self._random.integers(0, VOCABULARY, own, dtype=np.int32)
        return self.request(np.concatenate([self._shared[:shared], new]), stay)

    def ended(self) -> int:
        """How many sequences have ended since the last call."""
        return sum(len(outputs.ends) for outputs in self.door.take_outputs(0) or ())

    def fill(self) -> None:
        """Memory that is free goes to blocks that nobody holds."""
        size, before = self.loop.scheduler.pool.block_tokens, -1
        while (free := self.loop.metrics.get().free_blocks) and free != before:
            before = free
            # All at once: while memory is filled, the rows come nearer to their ends.
            while free > 0 and self.door.queued < FILLERS:
                blocks = min(free, self._context // size)
                free -= blocks
                self.push(self._random.integers(0, VOCABULARY, blocks * size, dtype=np.int32), 1)
            for _ in range(4):
                self.step()
        assert self._all_decode(), "rows have ended"

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


@dataclass
class Side:
    """One of those that are compared: a step that is measured, and what comes between steps."""

    step: Callable[[], object]
    between: Callable[[], object] = lambda: None


def engine_side(engine: Engine) -> Side:
    """A pass; what it says is thrown away outside of it."""
    return Side(engine.loop.step, lambda: engine.door.take_outputs(0))


class Yardstick:
    """A piece of Python that is always the same, and touches about as much memory as a pass."""

    def __init__(self) -> None:
        self._sides = [Side(int) for _ in range(2_000)]

    def ns(self) -> int:
        """How long it takes now: how fast the machine is for work of this kind."""
        began = time.thread_time_ns()
        for side in self._sides:
            side.step()
        return time.thread_time_ns() - began


def warm_up() -> None:
    """A virtual processor that slept may be slow at first: nothing is measured until it is awake."""
    yardstick, until = Yardstick(), time.monotonic() + WARM_UP_S
    while time.monotonic() < until:
        yardstick.ns()


def at_full_speed(paces: NDArray[Any]) -> NDArray[np.bool_]:
    """Turns in which the machine was not slower than it can be, by the yardstick before and after."""
    slower = np.maximum(paces[:-1], paces[1:]) / np.quantile(paces, 0.05)
    return slower <= max(SLOWER, float(np.quantile(slower, 0.2)))


def in_turn(
    sides: dict[str, Side], passes: int, turn: int = TURN, paces: list[int] | None = None
) -> dict[str, NDArray[Any]]:
    """Nanoseconds of each pass of each side, in turns: ``[turn, pass of the turn]``.

    The first passes of a turn find the processor's caches full of the other side's, and do not count.
    ``paces`` gets what the yardstick says before each turn and behind the last.
    """
    yardstick = Yardstick()
    turns = max(1, passes // turn)
    took = {name: np.zeros((turns, turn)) for name in sides}
    garbage = Garbage()
    garbage.start()
    for at in range(turns):
        if paces is not None:
            paces.append(yardstick.ns())
        for name, side in sides.items():
            step, between = side.step, side.between
            for i in range(-WARM if len(sides) > 1 else -1, turn):
                began = time.thread_time_ns()
                step()
                if garbage.pressing():
                    garbage.collect()
                spent = time.thread_time_ns() - began
                if i >= 0:
                    took[name][at, i] = spent
                between()
    if paces is not None:
        paces.append(yardstick.ns())
    garbage.stop()
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
    """A decode-only pass, alone; and then, in turns, how many of it the plain reference takes.

    Turns in which the machine was slow do not count (``at_full_speed``); what all say is there too.
    """
    engine = Engine(rows, context, block_tokens=block_tokens, passes=2 * passes)
    warm_up()
    paces: list[int] = []
    alone = in_turn({"engine": engine_side(engine)}, passes, 4, paces)["engine"]
    fast = at_full_speed(np.array(paces))
    plain = Side(Plain(rows, context, block_tokens).step)
    both = in_turn({"engine": engine_side(engine), "plain": plain}, PLAIN_PASSES, 10)
    assert engine.loop.metrics.get().pass_tokens == rows
    return {
        **figures(alone[fast]),
        "slow_turns": round(1 - float(fast.mean()), 2),
        "median_of_all_us": figures(alone)["median_us"],
        "plain_ratio": ratio(both["plain"], both["engine"]),
    }


def full_over_free(rows: int, block_tokens: int, passes: int) -> float:
    """A decode-only pass whose new blocks take the memory of old ones: median of turns."""
    free = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes, spare=FILLERS)
    full = Engine(rows, 1_000, block_tokens=block_tokens, passes=passes, spare=FILLERS)
    full.fill()
    evicted = full.loop.metrics.get().evictions
    took = in_turn({"free": engine_side(free), "full": engine_side(full)}, passes)
    assert full.loop.metrics.get().evictions > evicted, "memory was free"
    assert free.loop.metrics.get().evictions == 0
    return ratio(took["full"], took["free"])


def changing(
    rows: int, block_tokens: int, passes: int, *, shared: int, own: int
) -> dict[str, float]:
    """Passes in which 1 % of the rows end and as many begin, beside those in which nobody does.

    How many do differs from pass to pass, so that what an end costs and what a beginning costs can be
    told from what is left without them: the cost of those that did not change, in a pass that is not
    of decodes alone. The requests themselves are made between passes; for the engine in which nobody
    ends as many are made, and thrown away, so that both find the processor's caches alike.
    """
    shares = np.resize([0.4, 1.6, 0.8, 1.2], STAY) / STAY
    counts = np.diff(np.round(np.cumsum(shares) * rows), prepend=0).astype(int)
    counts = np.random.default_rng(2).permutation(counts)
    still = Engine(rows, 1_000, block_tokens=block_tokens, passes=2 * passes)
    moving = Engine(rows, 1_000, block_tokens=block_tokens, passes=2 * passes, ends=counts.tolist())
    ended: list[int] = [0]

    def replace() -> None:
        ended.append(moving.ended())
        for _ in range(ended[-1]):
            moving.door.push(moving.like(shared, own))

    def pretend() -> None:
        still.ended()
        for _ in range(ended[-1]):
            still.like(shared, own)

    for _ in range(SETTLE + 2 * STAY):
        moving.loop.step()
        replace()
    del ended[:-1]
    sides = {"moving": Side(moving.loop.step, replace), "still": Side(still.loop.step, pretend)}
    took = in_turn(sides, passes)
    # One that begins in pass i takes the place of one that ended in pass i - 1, which had its last
    # token handed over in pass i - 2; its own first token comes in pass i + 1.
    around = [np.roll(ended[:-1], by).reshape(-1, WARM + TURN)[1:-1, WARM:].ravel() for by in NEAR]
    rest, *each = _fit(took["moving"][1:-1].ravel() / 1000, *around)
    steady_us = float(np.median(took["still"])) / 1000
    return {
        "share_per_pass": round(float(np.mean(ended)) / rows, 4),
        "mean_us": round(float(np.mean(took["moving"])) / 1000, 1),
        **figures(took["moving"]),
        "steady_us": round(steady_us, 1),
        "over_steady": ratio(took["moving"], took["still"]),
        "each_change_us": round(sum(each), 1),
        "unchanged_us": round(rest, 1),
        "unchanged_over_steady": round(rest / steady_us, 3),
    }


def _fit(took: NDArray[Any], *counts: NDArray[Any]) -> list[float]:
    """Least squares of ``took`` by a constant and these counts; slowest passes do not count."""
    columns = np.stack([np.ones(len(took)), *counts], axis=1)
    found: NDArray[Any] = np.linalg.lstsq(columns, took, rcond=None)[0]
    for _ in range(2):
        left = took - columns @ found
        kept = left <= np.quantile(left, 0.9)
        found = np.linalg.lstsq(columns[kept], took[kept], rcond=None)[0]
    return found.tolist()


def long_over_short(rows: int, block_tokens: int, passes: int, *, changing: bool = False) -> float:
    """A pass with sequences of 100,000 tokens over one with 1,000: median of turns.

    ``changing``: beside them a quarter as many come and go, with short prompts, so that in each pass
    about 1 % of the rows end and as many begin.
    """
    spare = rows // 4 if changing else 0
    sides: dict[str, Side] = {}
    for name, context in (("short", 1_000), ("long", 100_000)):
        engine = Engine(rows, context, block_tokens=block_tokens, passes=passes, spare=spare)
        sides[name] = come_and_go(engine, spare) if changing else engine_side(engine)
    took = in_turn(sides, passes)
    return ratio(took["long"], took["short"])


def come_and_go(engine: Engine, count: int) -> Side:
    """``count`` brief sequences beside those that stay; whoever ends is replaced by another."""
    for at in range(count):
        engine.door.push(engine.like(0, FRESH, 1 + at * BRIEF // count))

    def replace() -> None:
        for _ in range(engine.ended()):
            engine.door.push(engine.like(0, FRESH, BRIEF))

    for _ in range(2 * BRIEF):
        engine.loop.step()
        replace()
    return Side(engine.loop.step, replace)


def waiting_adds_us(rows: int, passes: int, tenants: int) -> float:
    """Microseconds that 10,000 waiting requests of so many tenants add to a pass: median of turns."""
    alone = Engine(rows, 1_000, block_tokens=64, passes=passes)
    crowded = Engine(rows, 1_000, block_tokens=64, passes=passes)
    for at in range(10_000):
        crowded.push(np.arange(100, dtype=np.int32), 16, tenant=str(at % tenants))
    crowded.step()
    took = in_turn({"alone": engine_side(alone), "crowded": engine_side(crowded)}, passes)
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


STEPS_US: dict[int, float] = {32: 1_550, 128: 3_400, 256: 5_840}
"""By rows: the fastest decode steps that were measured, W4 with a model of 0.6B on an H200
(``results/2026-11-30-h200-qwen06b-2.json`` and ``-3.json``). A pass must hide behind them."""

BUDGETS: dict[str, float] = {
    "steady_256_us": 250,
    "steady_1024_us": 1000,
    "long_over_short": 1.1,
    "changing_of_step": 0.2,
    "changing_p999_of_step": 1,
    "each_change_us": 150,
    "cached_admission_ms": 5,
    "waiting_adds_us": 20,
    "metadata_bytes": 2048,
}
"""Upper bounds. Why a pass in which some change has these and none by a steady pass:
``docs/decisions/0024-budget-of-changes.md``."""


class Table:
    """Figures, shown as they come; and the worst of those that have a budget."""

    def __init__(self) -> None:
        self.figures: dict[str, object] = {}
        self.worst: dict[str, float] = {}

    def show(self, name: str, figure: object) -> None:
        """One figure, or several that belong together."""
        self.figures[name] = figure
        print(f"{name}: {figure}", flush=True)

    def judge(self, budget: str, figure: float) -> None:
        """A figure that has a budget; of several the worst counts."""
        self.worst[budget] = max(figure, self.worst.get(budget, figure))

    def verdicts(self) -> dict[str, str]:
        """Each budget with what came."""
        return {
            name: f"{worst:g} of {BUDGETS[name]:g}: {'met' if worst <= BUDGETS[name] else 'MISSED'}"
            for name, worst in self.worst.items()
        }


def measure(table: Table, options: argparse.Namespace) -> None:
    """Every figure that was asked for."""
    only, passes, least = options.only, options.passes, options.rows[0]
    for block_tokens in options.block_tokens:
        blocks = f"blocks of {block_tokens}"
        for rows in options.rows:
            if only in (None, "steady"):
                figure = steady(rows, options.context, block_tokens, passes)
                table.show(f"steady, {rows} rows, {blocks}", figure)
                if f"steady_{rows}_us" in BUDGETS:
                    table.judge(f"steady_{rows}_us", figure["median_us"])
        if only in (None, "long"):
            figure = long_over_short(least, block_tokens, passes // 2)
            table.show(f"long_over_short, {blocks}", figure)
            table.judge("long_over_short", figure)
            figure = long_over_short(least, block_tokens, passes // 2, changing=True)
            table.show(f"long_over_short while 1 % changes, {blocks}", figure)
            table.judge("long_over_short", figure)
        if only in (None, "rest"):
            admission = cached_admission_ms(block_tokens)
            table.show(f"cached_admission_ms, {blocks}", admission)
            table.judge("cached_admission_ms", admission["median"])
            metadata = metadata_bytes(block_tokens)
            table.show(f"metadata_bytes, {blocks}", metadata)
            table.judge("metadata_bytes", metadata)
    block_tokens = options.block_tokens[0]
    if only in (None, "change"):
        for name, shared, own in (("fresh", 0, FRESH), ("cached", 1_000 - TAIL, 16)):
            for rows in options.rows if name == "fresh" else [least]:
                figure = changing(rows, block_tokens, passes // 2, shared=shared, own=own)
                table.show(f"changing, {rows} rows, {name} prompts", figure)
                table.judge("each_change_us", figure["each_change_us"])
        for rows, step_us in STEPS_US.items():
            figure = changing(rows, options.block_tokens[-1], passes // 2, shared=0, own=FRESH)
            share, worst = figure["mean_us"] / step_us, figure["p999_us"] / step_us
            table.show(
                f"changing_of_step, {rows} rows, a step of {step_us:g} us",
                {"mean_us": figure["mean_us"], "share": round(share, 3), "p999": round(worst, 3)},
            )
            table.judge("changing_of_step", round(share, 3))
            table.judge("changing_p999_of_step", round(worst, 3))
        table.show("full_over_free", full_over_free(least, block_tokens, passes // 2))
    if only in (None, "rest"):
        for tenants in (1, 1_000):
            waiting = waiting_adds_us(least, passes // 2, tenants)
            table.show(f"waiting_adds_us, tenants: {tenants}", waiting)
            table.judge("waiting_adds_us", waiting)


def main() -> None:
    """Prints every figure, then one line of JSON."""
    parser = argparse.ArgumentParser(description="Host cost of one pass.")
    parser.add_argument("--rows", type=int, nargs="+", help="sequences that run (256 1024)")
    parser.add_argument("--context", type=int, default=1000, help="tokens of each prompt")
    parser.add_argument("--block-tokens", type=int, nargs="+", help="tokens of a block (16 64)")
    parser.add_argument("--passes", type=int, help="that are measured of each side (800)")
    parser.add_argument("--only", choices=["steady", "change", "long", "rest"], help="a part of it")
    parser.add_argument("--quick", action="store_true", help="256 rows, blocks of 16, 160 passes")
    options = parser.parse_args()
    options.rows = options.rows or ([256] if options.quick else [256, 1024])
    options.block_tokens = options.block_tokens or ([16] if options.quick else [16, 64])
    options.passes = options.passes or (160 if options.quick else 800)
    load = os.getloadavg()[0]
    began = time.monotonic()
    table = Table()
    measure(table, options)
    print(
        json.dumps(
            {
                "bench": "pass_cost",
                "commit": commit(),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}",
                "python": platform.python_version(),
                "context": options.context,
                "passes": options.passes,
                "seconds": round(time.monotonic() - began, 1),
                "budgets": table.verdicts(),
                "figures": table.figures,
            }
        )
    )


if __name__ == "__main__":
    main()
