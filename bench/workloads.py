"""Workloads through the offline API, and one over HTTP: tokens a second and time per token.

``python bench/workloads.py --executor cuda --model DIR --out FILE`` runs all but the one over HTTP, and
``python bench/workloads.py --executor echo`` does so small, on any machine; ``--workload w1 w3`` some.
Every setting of the engine is a flag too: with ``--max-batch 1024`` all of w6 is resident at once. Over
HTTP there are as many gateways and client processes as ``--gateways`` and ``--clients`` say.

========  ==========================================================================================
w1        one stream: 128 in, 512 out. TPOT = (wall of 512 tokens - wall of 1) / 511
w2        prefill: one prompt of 8,192, and 16 of 2,048, 1 out
w3        256 prompts, in and out uniform in 100..1024, all at once
w4-N      a batch of N = 32, 128, 256: 512 in, 256 out. TPOT as in w1
w5        128 prompts of a common prefix of 4,096 and 128 of their own, 64 out, cold cache
w6        1,000 prompts of 512, 128 out, all at once
w6-http   the same as streams of the whole stack: server, engine, gateways and clients as processes
========  ==========================================================================================

``w1-sampled`` and ``w3-sampled`` are the same at temperature 1, top_p 0.95; all else is greedy. After
the workloads come the parts of a decode step of each w4 (``step_stages.py``).

``--size small`` (the default but on cuda) divides every length by 16 and every count by 8. Ends of
text are ignored. Prompts depend on the workload and the repeat alone, and share no prefix between
repeats. Beside what was measured at full size on a shape that peers were measured on stand their
figures and targets (``peers.py``), and floors (``floors.py``). The last line is JSON: medians, every repeat, settings, commit,
machine; ``--out`` writes it to a file as well, after each workload what there is by then.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import cast

import numpy as np
from floors import Request, floors_of, parts_of
from headrace_engine.api import Completion, Engine, EngineSettings, Sampling
from headrace_kit.flags import add_flags, given_flags
from headrace_kit.settings import load
from over_http import Stack, Streams, burst, serving
from peers import comparison, peers_of
from report import commit, output_of
from step_stages import device_stages, host_stages
from token_gaps import TokenGaps

LARGEST_ID = 10_000
PREFIX_SEED, FIXED_SEED = 5000, 1000
NAMES = ("w1", "w2", "w3", "w4-32", "w4-128", "w4-256", "w5", "w6")
SAMPLED = {"w1-sampled": "w1", "w3-sampled": "w3"}
"""Workloads at a temperature, and what they are without."""
SAMPLED_REPEAT = 50
"""Added to repeats of those, whose prompts must be nobody's."""
OVER_HTTP = "w6-http"

Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Size:
    """By how much a workload is made smaller; 1 is the full one."""

    lengths: int
    counts: int

    def tokens(self, count: int) -> int:
        """A length."""
        return max(1, count // self.lengths)

    def prompts(self, count: int) -> int:
        """A count of prompts."""
        return max(1, count // self.counts)


FULL, SMALL = Size(1, 1), Size(16, 8)


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one repeat."""

    wall_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    first_token_s: float
    """From submission, median."""
    token_s: float
    """Between tokens of one sequence as the engine saw them, mean; 0 with one token each."""

    @property
    def output_rate(self) -> float:
        """Output tokens a second."""
        return self.output_tokens / self.wall_s

    @property
    def total_rate(self) -> float:
        """Tokens a second, in and out."""
        return (self.prompt_tokens + self.output_tokens) / self.wall_s


def ids(source: random.Random, count: int) -> list[int]:
    """Uniform token ids."""
    return [source.randint(0, LARGEST_ID) for _ in range(count)]


def fixed(count: int, length: int, seed: int) -> Prompts:
    """``count`` prompts of one length."""
    source = random.Random(FIXED_SEED + seed)
    return [ids(source, length) for _ in range(count)]


def prefixed(count: int, shared: int, own: int, seed: int) -> Prompts:
    """``count`` prompts with the same first ``shared`` tokens."""
    source = random.Random(PREFIX_SEED + seed)
    prefix = ids(source, shared)
    return [prefix + ids(source, own) for _ in range(count)]


def mixed(size: Size, repeat: int) -> tuple[Prompts, list[int]]:
    """Prompts and output lengths, each uniform in 100..1024. A repeat shifts the ids."""
    source = random.Random(0)
    least, most, count = size.tokens(100), size.tokens(1024), size.prompts(256)
    prompts = [ids(source, source.randint(least, most)) for _ in range(count)]
    outputs = [source.randint(least, most) for _ in range(count)]
    if repeat:
        prompts = [
            [(token + repeat * 1009 + i) % (LARGEST_ID + 1) for i, token in enumerate(prompt)]
            for prompt in prompts
        ]
    return prompts, outputs


def requests_at_once() -> dict[str, list[Request]]:
    """The workloads that are one burst, at full size, as ``floors.py`` takes them."""
    prompts, outputs = mixed(FULL, 0)
    followers = [Request(128, 64, cached=4096)] * 127
    return {
        "w1": [Request(128, 512)],
        "w3": [Request(len(ids), tokens) for ids, tokens in zip(prompts, outputs, strict=True)],
        "w5": [Request(4096 + 128, 64), *followers],
        "w6": [Request(512, 128)] * 1000,
    }


GREEDY = Sampling(1, temperature=0.0)
DRAWN = Sampling(1, temperature=1.0, top_p=0.95)


class Bench:
    """An engine and a size."""

    def __init__(self, engine: Engine, size: Size) -> None:
        self._engine = engine
        self._size = size
        self._sampling = GREEDY

    def measure(self, name: str, repeat: int) -> dict[str, float]:
        """The figures of one repeat of a workload."""
        if name in SAMPLED:
            self._sampling = DRAWN
            try:
                return self.measure(SAMPLED[name], repeat + SAMPLED_REPEAT)
            finally:
                self._sampling = GREEDY
        size = self._size
        # Prompts of one seed begin alike whatever their length: no two workloads share a seed.
        seed = repeat + 100 * NAMES.index(name)
        if name == "w1":
            return self._one_stream(seed)
        if name == "w2":
            one = self._run(fixed(1, size.tokens(8192), seed), 1)
            many = self._run(fixed(size.prompts(16), size.tokens(2048), seed + 50), 1)
            return {"one_ttft_ms": 1e3 * one.wall_s, "many_tok_s": many.total_rate}
        if name == "w3":
            prompts, outputs = mixed(size, repeat)
            return _figures(self._run(prompts, outputs))
        if name.startswith("w4"):
            count = size.prompts(int(name.removeprefix("w4-")))
            length, tokens = size.tokens(512), size.tokens(256)
            first = self._run(fixed(count, length, seed + 50), 1)
            whole = self._run(fixed(count, length, seed), tokens)
            tpot_ms = 1e3 * (whole.wall_s - first.wall_s) / (tokens - 1)
            return {"tpot_ms": tpot_ms, **_figures(whole)}
        if name == "w5":
            shared, own = size.tokens(4096), size.tokens(128)
            prompts = prefixed(size.prompts(128), shared, own, seed)
            return _figures(self._run(prompts, size.tokens(64)))
        prompts = fixed(size.prompts(1000), size.tokens(512), seed)
        with TokenGaps() as gaps:
            figures = _figures(self._run(prompts, size.tokens(128)))
        return figures | gaps.quantiles_ms()

    def warm_up(self) -> None:
        """What only the first run of anything costs."""
        self._run([[1, 2, 3]], 8)
        self._run([[4] * self._size.tokens(128)], 8)

    def stages(self, name: str, *, on_device: bool) -> dict[str, float]:
        """Milliseconds of a decode step of a fixed batch, by part."""
        count = self._size.prompts(int(name.removeprefix("w4-")))
        length, seed = self._size.tokens(512), 10_000 * count

        def run(tokens: int) -> Run:
            nonlocal seed
            seed += 1
            return self._run(fixed(count, length, seed), tokens)

        stages = host_stages(self._engine, lambda: run(self._size.tokens(128)))
        return stages | (device_stages(run) if on_device else {})

    def _one_stream(self, seed: int) -> dict[str, float]:
        size = self._size
        length, tokens = size.tokens(128), size.tokens(512)
        # Two prompts, so that the second finds nothing of the first in the cache.
        first = self._run(fixed(1, length, seed), 1)
        whole = self._run(fixed(1, length, seed + 50), tokens)
        return {
            "tpot_ms": 1e3 * (whole.wall_s - first.wall_s) / (tokens - 1),
            "engine_tpot_ms": 1e3 * whole.token_s,
            "ttft_ms": 1e3 * first.wall_s,
            "out_tok_s": whole.output_rate,
        }

    def _run(self, prompts: Prompts, outputs: int | Sequence[int]) -> Run:
        vocabulary = self._engine.shape.vocabulary
        if vocabulary <= LARGEST_ID:
            prompts = [[token % vocabulary for token in prompt] for prompt in prompts]
        counts = [outputs] * len(prompts) if isinstance(outputs, int) else outputs
        samplings = [
            replace(self._sampling, max_new_tokens=count, seed=i) for i, count in enumerate(counts)
        ]
        began = time.perf_counter()
        completions = self._engine.infer(prompts, samplings)
        wall_s = time.perf_counter() - began
        assert [len(completion.tokens) for completion in completions] == list(counts)
        return _summed(completions, wall_s)


class HttpBench:
    """A stack that serves, and the same prompts over HTTP."""

    def __init__(self, stack: Stack, size: Size, clients: int) -> None:
        self._stack = stack
        self._size = size
        self._clients = clients

    def measure(self, name: str, repeat: int) -> dict[str, float]:
        """The figures of one repeat of the workload over HTTP."""
        assert name == OVER_HTTP
        size = self._size
        count, tokens = size.prompts(1000), size.tokens(128)
        streams = self._run(fixed(count, size.tokens(512), repeat + 100 * len(NAMES)), tokens)
        prompt_tokens = count * size.tokens(512)
        gaps = np.quantile(streams.gaps_s, [0.5, 0.99]) if len(streams.gaps_s) else (0.0, 0.0)
        return {
            "wall_s": streams.wall_s,
            "out_tok_s": streams.tokens / streams.wall_s,
            "total_tok_s": (streams.tokens + prompt_tokens) / streams.wall_s,
            "ttft_ms": 1e3 * float(np.median(streams.first_s)),
            "itl_p50_ms": 1e3 * float(gaps[0]),
            "itl_p99_ms": 1e3 * float(gaps[1]),
            "tokens_per_event": streams.tokens / streams.events,
            **{f"cpu_{name}_s": spent for name, spent in streams.cpu_s.items()},
        }

    def warm_up(self) -> None:
        """What only the first streams of a gateway cost."""
        self._run(fixed(8 * self._clients, 8, 1), 8)

    def _run(self, prompts: Prompts, tokens: int) -> Streams:
        prompts = [[token % self._stack.vocabulary for token in prompt] for prompt in prompts]
        return burst(self._stack, prompts, tokens, self._clients)


def _summed(completions: list[Completion], wall_s: float) -> Run:
    usages = [completion.usage for completion in completions]
    between = sum(usage.completion_tokens - 1 for usage in usages)
    return Run(
        wall_s=wall_s,
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        output_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        first_token_s=statistics.median(usage.queue_s + usage.prefill_s for usage in usages),
        token_s=sum(usage.decode_s for usage in usages) / between if between else 0.0,
    )


def _figures(run: Run) -> dict[str, float]:
    return {
        "wall_s": run.wall_s,
        "out_tok_s": run.output_rate,
        "total_tok_s": run.total_rate,
        "engine_tpot_ms": 1e3 * run.token_s,
        "ttft_ms": 1e3 * run.first_token_s,
        "cached_tokens": run.cached_tokens,
    }


def settings_for(given: dict[str, object], size: Size) -> EngineSettings:
    """Room for every workload of the size; what is given on the command line wins."""
    defaults: dict[str, object] = {
        "max_batch": size.prompts(256),
        "max_waiting": size.prompts(1024),
        "prefill_chunk_tokens": max(64, size.tokens(8192)),
        "context_tokens": size.tokens(8192) + 64,
        "echo_tokenizer": False,
    }
    asked = defaults | given
    # Beside a token of each row a whole chunk, however many rows were asked for.
    rows, chunk = int(f"{asked['max_batch']}"), int(f"{asked['prefill_chunk_tokens']}")
    return load(EngineSettings, cli={"batch_tokens": rows + chunk} | asked)


def machine(*, on_device: bool) -> dict[str, object]:
    """What ran, and in which versions."""
    facts: dict[str, object] = {"device": "cpu", "processor": platform.processor()}
    if on_device:
        import torch

        asked = "--query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit"
        said = output_of("nvidia-smi", asked, "--format=csv,noheader").splitlines()
        # Read while nothing runs: the clock that matters is the one in the load's own time.
        facts = {
            "device": torch.cuda.get_device_name(),
            "driver, clock idle and at most, power limit": said[0] if said else "",
            "torch": torch.__version__,
            "triton": version("triton"),
        }
    return facts | {"python": platform.python_version(), "cores": os.cpu_count()}


@dataclass(frozen=True, slots=True)
class Repeated:
    """Figures of one workload."""

    median: dict[str, float]
    repeats: list[dict[str, float]]


def repeated(measure: Callable[[str, int], dict[str, float]], name: str, repeats: int) -> Repeated:
    """Runs a workload ``repeats`` times; says the figures as they come."""
    runs: list[dict[str, float]] = []
    for repeat in range(repeats):
        runs.append(measure(name, repeat))
        print(f"{name:7} {repeat}: {_said(runs[-1])}", flush=True)
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    print(f"{name:7} median: {_said(medians)}", flush=True)
    return Repeated(medians, runs)


def _said(figures: dict[str, float]) -> str:
    return "  ".join(f"{key} {value:,.3f}" for key, value in figures.items())


class Report:
    """What is known of a run so far, as JSON."""

    def __init__(self, out: Path | None, facts: dict[str, object]) -> None:
        self._out = out
        self.facts = facts
        self.workloads: dict[str, Repeated] = {}

    def add(self, name: str, figures: Repeated) -> None:
        """One more workload; the file is written again."""
        self.workloads[name] = figures
        self.write()

    def write(self) -> None:
        """The file, where one was asked for."""
        if self._out is not None:
            self._out.write_text(json.dumps(self.whole(), indent=1) + "\n")

    def whole(self) -> dict[str, object]:
        """Everything."""
        return self.facts | {
            "workloads": {name: asdict(workload) for name, workload in self.workloads.items()}
        }

    def medians(self) -> dict[str, dict[str, float]]:
        """Of each workload; the start is one."""
        known = {name: workload.median for name, workload in self.workloads.items()}
        if "ready_s" in self.facts:
            known["start"] = {"ready_s": cast("float", self.facts["ready_s"])}
        return known


def offline_runs(
    report: Report, settings: EngineSettings, size: Size, names: Sequence[str], repeats: int
) -> tuple[str, int]:
    """The workloads of the offline API, in this process. Returns architecture and vocabulary."""
    on_device = settings.executor == "cuda"
    began = time.perf_counter()
    with Engine(settings=settings) as engine:
        report.facts |= {"model": asdict(engine.shape), "ready_s": time.perf_counter() - began}
        print(f"{engine.name}, ready after {report.facts['ready_s']:.1f} s", flush=True)
        bench = Bench(engine, size)
        bench.warm_up()
        gc.collect()
        gc.freeze()
        for name in names:
            report.add(name, repeated(bench.measure, name, repeats))
        metrics = engine.get_schedule_metrics()
        report.facts |= {"preemptions": metrics.preemptions, "evictions": metrics.evictions}
        stages: dict[str, dict[str, float]] = {}
        for name in [name for name in names if name.startswith("w4")]:
            stages[name] = bench.stages(name, on_device=on_device)
            print(f"{name:7} of a step: {_said(stages[name])}", flush=True)
        report.facts["stages"] = stages
        report.write()
        return engine.shape.architecture, engine.shape.vocabulary


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*NAMES, *SAMPLED]
    parser.add_argument("--workload", nargs="+", choices=[*every, OVER_HTTP], default=every)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--size", choices=["full", "small"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, metavar="FILE")
    add_flags(parser, EngineSettings)
    flags = parser.parse_args()
    given = {name: value for name, value in given_flags(flags).items() if value is not None}
    full = flags.size == "full" or (flags.size is None and given.get("executor") == "cuda")
    size = FULL if full else SMALL
    settings = settings_for(given, size)
    report = Report(
        flags.out,
        {
            "bench": "workloads",
            "date": f"{date.today()}",
            "commit": commit(),
            "size": "full" if full else "small",
            "settings": settings.model_dump(mode="json", exclude_unset=True, exclude={"model"}),
            "machine": machine(on_device=settings.executor == "cuda"),
        },
    )
    shape: tuple[str, int] = ("", 0)
    offline = [name for name in flags.workload if name != OVER_HTTP]
    if offline:
        shape = offline_runs(report, settings, size, offline, flags.repeats)
    if OVER_HTTP in flags.workload:
        with serving(settings, flags.gateways) as stack:
            print(f"over HTTP, ready after {stack.ready_s:.1f} s", flush=True)
            shape = (stack.architecture, stack.vocabulary)
            over = HttpBench(stack, size, flags.clients)
            over.warm_up()
            counts = {"gateways": flags.gateways, "clients": flags.clients}
            report.facts["http"] = {**counts, "ready_s": stack.ready_s}
            report.add(OVER_HTTP, repeated(over.measure, OVER_HTTP, flags.repeats))
    parts = parts_of(*shape)
    if full and parts is not None:
        rows, tokens = settings.max_batch, settings.batch_tokens
        floors = floors_of(parts, requests_at_once(), max_batch=rows, batch_tokens=tokens)
        report.facts["floors"] = floors
        report.write()
        print(comparison(peers_of(*shape), report.medians(), floors))
    print(json.dumps(report.whole()))


if __name__ == "__main__":
    main()
