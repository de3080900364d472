"""What the host adds to a first token, and to a short burst, through the offline API; no device needed.

``python bench/first_token.py`` runs an engine in this process whose device is made up: handing a batch
over takes it some calls that let go of the interpreter, as launching kernels does, and then the batch
takes a time that goes with its tokens; as it comes, that of a 0.6B model on an H200. Everything else is
the engine as it runs on a GPU, with blocks of 64 and two phases.

========  ==========================================================================================
one-128   one prompt of 128, 1 out, through ``Engine.infer``
one-8192  one prompt of 8,192
many      16 prompts of 2,048, all at once
stream    one prompt of 128, 8 out, through ``Instance.stream_infer``, up to the first token
floor     the hand-overs alone: an empty batch passed from mailbox to mailbox by threads that do nothing
          else, in the order of a real one
========  ==========================================================================================

Of each: ``before`` is from the call until the first batch is with the device, ``after`` from the end of the
last batch (of ``stream``: the first) until the caller has what came of it, ``idle`` the time between
batches in which the device has nothing. Microseconds, median and best tenth; ``cpu`` is what all threads took of a
processor, in one piece. The last line is JSON.

usage: first_token.py [--repeats 100] [--step-ms 1] [--token-us 2.3] [--launches 40]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, astuple, dataclass, field, fields
from itertools import pairwise
from typing import Final

from headrace_engine.api import Engine, EngineSettings, Sampling
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel
from headrace_engine.state.batch import BatchData
from headrace_engine.state.mailbox import Mailbox
from report import commit

VOCABULARY: Final = 128_256
BLOCK_TOKENS: Final = 64
POOL_BLOCKS: Final = 14_000
"""About what an 8B model leaves room for on a card of 141 GB."""
PAUSE_S: Final = 0.005
"""Before each request: threads sleep as they do where requests are rare."""
WARM_UP: Final = 10
LAUNCH_WORK: Final = 500
"""Numbers that are summed up for each call of a launch: some 10 us."""
GREEDY: Final = Sampling(1, temperature=0.0)

now = time.perf_counter


@dataclass(slots=True)
class Device:
    """Runs one batch after the other, after ``launches`` calls of the host for each."""

    step_s: float
    token_s: float
    """Of a batch: ``step_s``, and this for each of its tokens."""
    launches: int
    sink: int = field(default_factory=lambda: os.open(os.devnull, os.O_WRONLY))
    free_s: float = 0.0
    """When it has run everything."""
    ends: deque[float] = field(default_factory=deque[float])
    """Of batches that nobody waited for yet."""
    ran: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Begin and end of each batch since somebody last emptied it."""

    def launch(self, tokens: int) -> None:
        """Hands a batch over."""
        for _ in range(self.launches):
            sum(range(LAUNCH_WORK))
            os.write(self.sink, b"-")  # lets go of the interpreter and takes it back
        begin = max(self.free_s, now())
        end = begin + self.step_s + self.token_s * tokens
        self.ran.append((begin, end))
        self.ends.append(end)
        self.free_s = end

    def wait(self) -> None:
        """Until the oldest batch has run."""
        end = self.ends.popleft()
        while (left := end - now()) > 0:
            time.sleep(left)


class MadeUpExecutor(EchoExecutor):
    """Echoes, in the time of a device."""

    def __init__(self, device: Device) -> None:
        super().__init__(VOCABULARY)
        self._device = device

    def submit(self, batch: BatchData) -> None:
        """See Executor."""
        super().submit(batch)
        self._device.launch(len(batch.tokens))

    def collect(self, batch: BatchData) -> None:
        """See Executor."""
        self._device.wait()
        super().collect(batch)


class Relay:
    """The threads of an engine, passing on a batch that nobody looks at."""

    def __init__(self, device: Device) -> None:
        self._device = device
        names = ("engine", "executor", "collector", "back", "signal", "caller")
        self._boxes = {name: Mailbox[int]() for name in names}
        bodies: dict[str, Callable[[], None]] = {
            "engine": self._engine,
            "executor": lambda: self._pass_on("executor", "collector", self._launch),
            "collector": lambda: self._pass_on("collector", "back", self._device.wait),
            "signal": lambda: self._pass_on("signal", "caller", lambda: None),
        }
        self._threads = [
            threading.Thread(target=body, name=name, daemon=True) for name, body in bodies.items()
        ]
        for thread in self._threads:
            thread.start()

    def run(self) -> None:
        """Once around."""
        self._boxes["engine"].put(0)
        self._boxes["caller"].take()

    def close(self) -> None:
        """Ends the threads."""
        for box in self._boxes.values():
            box.close()
        for thread in self._threads:
            thread.join()

    def _launch(self) -> None:
        self._device.launch(1)

    def _engine(self) -> None:
        while (item := self._boxes["engine"].take()) is not None:
            self._boxes["executor"].put(item)
            if self._boxes["back"].take() is not None:
                self._boxes["signal"].put(item)

    def _pass_on(self, source: str, target: str, work: Callable[[], None]) -> None:
        while (item := self._boxes[source].take()) is not None:
            work()
            self._boxes[target].put(item)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one workload: microseconds."""

    before: float
    before_best: float
    after: float
    after_best: float
    idle: float
    cpu: float


class Bench:
    """Runs things on one device and tells the host's part of them."""

    def __init__(self, device: Device, repeats: int) -> None:
        self._device = device
        self._repeats = repeats

    def measure(self, run: Callable[[], float], *, batch: int = -1) -> Figures:
        """``run`` returns when the caller had what it waited for, which came of ``batch``."""
        for _ in range(WARM_UP):
            run()
        before: list[float] = []
        after: list[float] = []
        idle: list[float] = []
        cpu: list[float] = []
        for _ in range(self._repeats):
            time.sleep(PAUSE_S)
            self._device.ran.clear()
            spent, called = time.process_time(), now()
            had = run()
            cpu.append(time.process_time() - spent)
            ran = self._device.ran
            before.append(ran[0][0] - called)
            after.append(had - ran[batch][1])
            idle.append(sum(b - a for (_, a), (b, _) in pairwise(ran)))
        return Figures(
            before=1e6 * statistics.median(before),
            before_best=1e6 * best_tenth(before),
            after=1e6 * statistics.median(after),
            after_best=1e6 * best_tenth(after),
            idle=1e6 * statistics.median(idle),
            cpu=1e6 * statistics.median(cpu),
        )


def best_tenth(values: Iterable[float]) -> float:
    """The value below which a tenth of them lie."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10]


class Prompts:
    """New ones each time."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def take(self, count: int, length: int) -> list[list[int]]:
        """Lists, as a tokenizer gives them."""
        return [[self._random.randrange(10_000) for _ in range(length)] for _ in range(count)]


def figures_of(device: Device, repeats: int) -> dict[str, Figures]:
    """All workloads, one after the other."""
    bench, prompts = Bench(device, repeats), Prompts()
    settings = EngineSettings(
        executor="echo",
        echo_tokenizer=False,
        max_batch=256,
        max_waiting=1024,
        prefill_chunk_tokens=8192,
        batch_tokens=8448,
        context_tokens=8256,
        block_tokens=BLOCK_TOKENS,
        cache_bytes=POOL_BLOCKS * BLOCK_TOKENS * 4,
    )
    executor = MadeUpExecutor(device)
    found: dict[str, Figures] = {}
    with Engine(settings=settings, load=lambda _, __: LoadedModel("m", executor, None)) as engine:
        gc.collect()
        gc.freeze()

        def infer(count: int, length: int) -> Callable[[], float]:
            # Made before the time of the run that takes them.
            waiting = [prompts.take(count, length) for _ in range(repeats + WARM_UP)]

            def run() -> float:
                engine.infer(waiting.pop(), GREEDY)
                return now()

            return run

        def stream() -> float:
            had = 0.0
            sampling = Sampling(8, temperature=0.0)
            for output in engine.create_instance().stream_infer(short.pop(), sampling):
                had = had or now()
                del output
            return had

        found["one-128"] = bench.measure(infer(1, 128))
        found["one-8192"] = bench.measure(infer(1, 8192))
        found["many"] = bench.measure(infer(16, 2048))
        short = prompts.take(repeats + WARM_UP, 128)
        found["stream"] = bench.measure(stream, batch=0)
    relay = Relay(device)

    def around() -> float:
        relay.run()
        return now()

    found["floor"] = bench.measure(around)
    relay.close()
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--step-ms", type=float, default=1.0, help="of the device, for each batch")
    parser.add_argument("--token-us", type=float, default=2.3, help="for each token of a batch")
    parser.add_argument("--launches", type=int, default=40, help="calls to hand a batch over")
    flags = parser.parse_args()
    device = Device(flags.step_ms / 1e3, flags.token_us / 1e6, flags.launches)
    found = figures_of(device, flags.repeats)
    columns = [column.name for column in fields(Figures)]
    print(f"{'us':10} " + " ".join(f"{column:>12}" for column in columns))
    for name, figures in found.items():
        print(f"{name:10} " + " ".join(f"{value:12,.0f}" for value in astuple(figures)))
    result = {
        "bench": "first_token",
        "commit": commit(),
        "step_ms": flags.step_ms,
        "token_us": flags.token_us,
        "launches": flags.launches,
        "repeats": flags.repeats,
        "machine": platform.platform(),
        "load": os.getloadavg()[0],
        "us": {name: asdict(figures) for name, figures in found.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
