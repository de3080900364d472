"""What the CPU executor does on the default model, through the engine's own loop and threads.

Five workloads for each way of holding weights, beside peers on the same weights and the time that
the weights' bytes alone take at the measured read bandwidth. Each peer runs in a process of the
interpreter that has it (`--peer vllm=/path/to/venv/bin/python`), in turn with ours, repeat by
repeat. Prints medians and the ratios that docs/guides/cpu.md names; ends with one JSON line.

usage: cpu.py [--quick] [--repeats 3] [--threads N] [--dtypes float32,bfloat16,packed]
              [--within SECONDS: leaves out data types that would begin later]
              [--peer transformers|vllm|llamacpp[=PYTHON]]... [--no-peer]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast, get_args

import numpy as np
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.executor.cpu import CpuExecutor, available_cores
from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.kernels.native import NativeLibrary
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.model.decoder import Dtype
from headrace_engine.model.layers import Matrix, Weights
from headrace_engine.model.loader.source import resolve
from headrace_engine.model.opening import open_model
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from numpy.typing import NDArray
from report import commit

Prompt = NDArray[np.int32]
VOCABULARY = 49_152
PEERS: Final = ("transformers", "vllm", "llamacpp")


class Prompts:
    """Token ids that no earlier prompt had, so that no cache can help."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    def make(self, tokens: int) -> Prompt:
        """``int32[tokens]``."""
        return self._random.integers(20, VOCABULARY, tokens).astype(np.int32)

    def sharing(self, count: int, shared: int, own: int) -> list[Prompt]:
        """``count`` prompts with the same first ``shared`` tokens."""
        first = self.make(shared)
        return [np.concatenate([first, self.make(own)]) for _ in range(count)]


@dataclass(frozen=True)
class Times:
    """Seconds from submission of all requests."""

    last_first: float
    """When every request had its first token."""
    end: float
    cpu: float
    """Seconds of the processor, of all threads together."""


class Engine:
    """Engine and executor threads around one executor, greedy, nothing ends early."""

    def __init__(self, executor: CpuExecutor) -> None:
        settings = SchedulerSettings(
            max_batch=32,
            max_waiting=64,
            batch_tokens=1056,
            prefill_chunk_tokens=1024,
            session_tokens=1280,
            pool_blocks=2048,
        )
        clock = SystemClock()
        self._door = EngineGateway(clock)
        limits = executor_limits(settings, executor.block_bytes(settings.block_tokens))
        self._executor = ExecutorThread(executor, limits)
        self._executor.start()
        loop = EngineLoop(self._door, self._executor, settings, clock, executor.shape)
        self._thread = threading.Thread(target=loop.run, name="engine")
        self._thread.start()
        self._next = 1

    def run(self, prompts: Sequence[Prompt], count: int) -> Times:
        """``count`` tokens for each prompt, all submitted at once."""
        begin, cpu = time.perf_counter(), time.process_time()
        waiting: set[int] = set()
        for prompt in prompts:
            handle = RequestHandle(self._next)
            self._next += 1
            waiting.add(handle)
            sampling = Sampling(max_new_tokens=count, temperature=0.0)
            self._door.push(Request(f"r{handle}", handle, prompt, sampling))
        silent = set(waiting)
        last_first = 0.0
        while waiting:
            for outputs in self._door.take_outputs(10.0) or []:
                handles = outputs.handles
                if silent:
                    silent -= set(handles[outputs.counts > 0].tolist())
                    last_first = time.perf_counter() - begin
                waiting -= {int(handles[end.row]) for end in outputs.ends}
        end = time.perf_counter() - begin
        return Times(last_first, end, time.process_time() - cpu)

    def close(self) -> None:
        """Ends both threads."""
        self._door.drain()
        self._thread.join()
        self._executor.close()


class Contender(Protocol):
    """An engine that can be timed."""

    def run(self, prompts: Sequence[Prompt], count: int) -> Times:
        """``count`` greedy tokens for each prompt, all submitted at once."""
        ...


@dataclass(frozen=True)
class Workload:
    """What is asked, and how a result becomes tokens per second."""

    make: Callable[[Prompts], list[Prompt]]
    count: int
    tokens: int
    """That the rate counts."""
    decode_only: bool = False
    """Whether the clock starts when every stream has its first token."""

    def rate(self, contender: Contender, prompts: Prompts) -> tuple[float, float]:
        """Tokens per second, by the clock and by the processor's time."""
        times = contender.run(self.make(prompts), self.count)
        seconds = times.end - (times.last_first if self.decode_only else 0.0)
        return self.tokens / seconds, self.tokens / max(times.cpu * seconds / times.end, 1e-9)


WORKLOADS: Final = {
    "one stream": Workload(lambda p: [p.make(128)], 65, 64, decode_only=True),
    "prefill 1024": Workload(lambda p: [p.make(1024)], 1, 1024),
    "batch 8": Workload(lambda p: [p.make(128) for _ in range(8)], 49, 8 * 48, decode_only=True),
    "shared 512": Workload(lambda p: p.sharing(32, 512, 32), 32, 32 * 32),
    "distinct": Workload(lambda p: [p.make(544) for _ in range(32)], 32, 32 * 32),
}
STATIC: Final = Workload(lambda p: p.sharing(8, 512, 32), 32, 8 * 32)
"""A quarter of the shared workload: as fast as the whole for a peer with batches of 8."""
CHEAP: Final = ("one stream", "prefill 1024", "batch 8")
"""Repeated in full; the others once, or twice in a run of three and more."""


class Peer:
    """Another engine, in a process and environment of its own; see cpu_peers/worker.py."""

    def __init__(self, name: str, python: str, model: str, dtype: str, threads: int) -> None:
        self.name = name
        worker = Path(__file__).parent / "cpu_peers" / "worker.py"
        self._process = subprocess.Popen(
            [python, str(worker), f"{name}_peer", model, dtype, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.first_token_s = float(self._answer()["ready"])

    def run(self, prompts: Sequence[Prompt], count: int) -> Times:
        """See Engine.run."""
        asked = {"prompts": [prompt.tolist() for prompt in prompts], "count": count}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return Times(**self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=60)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; run bench/cpu_peers/worker.py by hand to see why")
        return json.loads(line)


class PeerPool:
    """Peers by name and data type, begun when first asked for; idle ones cost nothing."""

    def __init__(self, pythons: dict[str, str], folder: Path, threads: int) -> None:
        self.pythons = pythons
        self._folder = folder
        self._threads = threads
        self._peers: dict[tuple[str, str], Peer] = {}

    def get(self, name: str, dtype: str) -> Peer:
        """Begins it, which takes seconds to minutes, or finds it."""
        if (name, dtype) not in self._peers:
            model = str(resolve(DEFAULT_MODEL)) if name == "llamacpp" else str(self._folder)
            peer = Peer(name, self.pythons[name], model, dtype, self._threads)
            self._peers[name, dtype] = peer
        return self._peers[name, dtype]

    def close(self) -> None:
        """Ends all of them."""
        for peer in self._peers.values():
            peer.close()


def write_folder(weights: Weights, folder: Path) -> None:
    """The model as a folder that `transformers` and vLLM read, in float32."""
    config = weights.config
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocabulary,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(described))
    tensors = {
        "model.embed_tokens.weight": weights.embedding.as_float32(),
        "model.norm.weight": weights.final_norm,
    }
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}."
        tensors[f"{at}input_layernorm.weight"] = layer.attention_norm
        tensors[f"{at}post_attention_layernorm.weight"] = layer.mlp_norm
        matrices = {"self_attn.o": layer.attention_output}
        matrices |= {"mlp.gate": layer.gate, "mlp.up": layer.up, "mlp.down": layer.down}
        for name, part in zip("qkv", layer.qkv.parts, strict=True):
            matrices[f"self_attn.{name}"] = Matrix((part,))
        for name, matrix in matrices.items():
            tensors[f"{at}{name}_proj.weight"] = matrix.as_float32()
    numpy_files: Any = importlib.import_module("safetensors.numpy")
    numpy_files.save_file(
        {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )


def read_bandwidth(threads: int) -> float:
    """Bytes per second when all threads read memory that no cache holds."""
    library = NativeLibrary(threads)
    rows = np.ones((4 * threads, 16 << 20), np.float32)
    best = 0.0
    for _ in range(4):
        begin = time.perf_counter()
        library.greedy(rows)
        best = max(best, rows.nbytes / (time.perf_counter() - begin))
    library.close()
    return best


def weight_bytes(weights: Weights, dtype: Dtype) -> int:
    """Bytes of weights that one decode step reads."""
    if dtype == "packed":
        return weights.stored_bytes
    numbers = weights.output.outputs * weights.output.inputs
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.attention_output, layer.gate, layer.up, layer.down):
            numbers += matrix.outputs * matrix.inputs
    return numbers * (4 if dtype == "float32" else 2)


class Table:
    """What was measured of one way of holding weights: rates by contender and workload."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[str, list[tuple[float, float]]]] = {}

    def add(self, contender: str, workload: str, rate: tuple[float, float]) -> None:
        """One repeat."""
        self._rates.setdefault(contender, {}).setdefault(workload, []).append(rate)

    def medians(self, contender: str, clock: int = 0) -> dict[str, float]:
        """Tokens per second by workload; ``clock`` 1 for the processor's time."""
        rates = self._rates.get(contender, {})
        return {name: statistics.median(r[clock] for r in found) for name, found in rates.items()}

    def ratios(self, contender: str) -> dict[str, float]:
        """Ours over the contender's: the median of each repeat's own ratio."""
        ours = self._rates["headrace"]
        return {
            name: statistics.median(
                mine[0] / other[0] for mine, other in zip(ours[name], found, strict=False)
            )
            for name, found in self._rates[contender].items()
        }


def measure(
    ours: Engine, peers: dict[str, tuple[Peer, Sequence[str]]], repeats: int, prompts: Prompts
) -> Table:
    """Every contender in turn, workload by workload, so that all meet the same machine."""
    table = Table()
    for name, workload in WORKLOADS.items():
        for _ in range(repeats if name in CHEAP else min(repeats, 1 + repeats // 3)):
            table.add("headrace", name, workload.rate(ours, prompts))
            for peer_name, (peer, wanted) in peers.items():
                if name in wanted:
                    static = peer.name == "transformers" and name == "shared 512"
                    asked = STATIC if static else workload
                    table.add(peer_name, name, asked.rate(peer, prompts))
    return table


def show(name: str, found: dict[str, float], digits: int = 1) -> None:
    """One line of the table."""
    cells = (f"{found[w]:12.{digits}f}" if w in found else f"{'-':>12}" for w in WORKLOADS)
    print(f"{name:24}", *cells, flush=True)


MATCHES: Final[dict[Dtype, dict[str, tuple[str, Sequence[str]]]]] = {
    "float32": {"transformers": ("float32", (*CHEAP, "shared 512"))},
    "bfloat16": {"vllm": ("bfloat16", (*CHEAP, "shared 512"))},
    "packed": {
        "llamacpp": ("packed", (*CHEAP, "shared 512")),
        "vllm": ("bfloat16", ("one stream",)),
    },
}
"""For each way of holding weights: the peers, their data type, and the workloads they run."""


def measure_dtype(
    dtype: Dtype,
    options: argparse.Namespace,
    pool: PeerPool,
    read_bytes: int,
) -> dict[str, Any]:
    """One section of the result, printed as it comes.

    ``read_bytes`` is what a step reads of the weights; the bandwidth is the best of a look before
    and one after, since both must be had at the same time as the streams.
    """
    bandwidth = read_bandwidth(options.threads)
    peers = {
        f"{name} {peer_dtype}": (pool.get(name, peer_dtype), wanted)
        for name, (peer_dtype, wanted) in MATCHES[dtype].items()
        if name in pool.pythons
    }
    prompts = Prompts()
    begin = time.perf_counter()
    engine = Engine(CpuExecutor.load(DEFAULT_MODEL, dtype=dtype, threads=options.threads))
    engine.run([prompts.make(40)], 1)
    first_token_s = time.perf_counter() - begin
    table = measure(engine, peers, options.repeats, prompts)
    engine.close()
    bandwidth = max(bandwidth, read_bandwidth(options.threads))
    floor = bandwidth / read_bytes
    ours = table.medians("headrace")
    show(f"headrace {dtype}", ours)
    row: dict[str, Any] = {
        "headrace": ours,
        "headrace_per_cpu_second": table.medians("headrace", 1),
        "bandwidth_bytes_s": round(bandwidth),
        "floor one stream": floor,
        "one stream / floor": ours["one stream"] / floor,
        "shared / distinct": ours["shared 512"] / ours["distinct"],
        "first token s": {"headrace": first_token_s},
    }
    for name, (peer, _) in peers.items():
        row[name] = table.medians(name)
        row[f"ratios to {name}"] = table.ratios(name)
        row["first token s"][name] = peer.first_token_s
        show(name, row[name])
        show("  ratio", row[f"ratios to {name}"], 2)
    print(
        f"  {bandwidth / 1e9:.1f} GB/s; one stream by bytes alone {floor:.0f} (reached {row['one stream / floor']:.2f});"
        f" shared / distinct {row['shared / distinct']:.1f}; first token after"
        f" {first_token_s:.1f} s"
    )
    return row


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repeat of everything")
    parser.add_argument("--within", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--peer", action="append", metavar="NAME[=PYTHON]")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--dtypes", default=",".join(get_args(Dtype)))
    options = parser.parse_args()
    if options.quick:
        options.repeats = 1
    pythons = {} if options.no_peer else chosen_peers(options.peer or ["transformers"])
    weights = open_model(DEFAULT_MODEL).weights
    begin = time.perf_counter()
    print(f"{options.threads} threads, tokens per second:")
    print(f"{'':24}", *(f"{name:>12}" for name in WORKLOADS))
    result: dict[str, Any] = {
        "bench": "cpu",
        "commit": commit(),
        "processor": processor(),
        "threads": options.threads,
        "repeats": options.repeats,
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if pythons:
            write_folder(weights, folder)
        pool = PeerPool(pythons, folder, options.threads)
        for dtype in cast("list[Dtype]", options.dtypes.split(",")):
            if time.perf_counter() - begin < options.within:
                size = weight_bytes(weights, dtype)
                result[dtype] = measure_dtype(dtype, options, pool, size)
        pool.close()
    result["load_after"] = os.getloadavg()[0]
    result["wall_s"] = time.perf_counter() - begin
    print(json.dumps(result, default=float))


def chosen_peers(asked: Sequence[str]) -> dict[str, str]:
    """Name to the interpreter that has it installed; by default the one that runs this."""
    found: dict[str, str] = {}
    for item in asked:
        name, _, python = item.partition("=")
        if name not in PEERS:
            raise SystemExit(f"--peer {item}: one of {', '.join(PEERS)}")
        found[name] = python or sys.executable
    return found


def processor() -> str:
    """Its name, and whether it has bf16 dot products, which decide the bf16 rows."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    name = next((x.split(":")[1].strip() for x in text.splitlines() if "model name" in x), "")
    units = [unit for unit in ("avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if unit in text]
    return f"{name or platform.machine()} ({', '.join(units) or 'no avx512'})"


if __name__ == "__main__":
    main()
