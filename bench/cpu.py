"""What the CPU executor does on the default model, through the engine's own loop and threads.

Four workloads for each way of holding weights, beside `transformers` on the same weights and the
time that the weights' bytes alone take at the measured read bandwidth. Prints medians and the
ratios that docs/guides/cpu.md names, and ends with one JSON line.

usage: cpu.py [--repeats 3] [--threads N] [--no-peer] [--dtypes float32,bfloat16,packed]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import numpy as np
from headrace_engine.default_model import DEFAULT_MODEL
from headrace_engine.executor.cpu import CpuExecutor, available_cores
from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.kernels.native import NativeLibrary
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.model.decoder import Dtype
from headrace_engine.model.layers import Matrix, Weights
from headrace_engine.model.opening import open_model
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from numpy.typing import NDArray

Prompt = NDArray[np.int32]
WORKLOADS = ("one stream", "prefill 1024", "batch 8", "shared 512", "distinct")
VOCABULARY = 49_152
PEER_LIMIT_S = 180.0
"""The peer runs no further workload once it has taken this long."""


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
        begin = time.perf_counter()
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
        return Times(last_first, time.perf_counter() - begin)

    def close(self) -> None:
        """Ends both threads."""
        self._door.drain()
        self._thread.join()
        self._executor.close()


def decode_rate(times: Times, streams: int, count: int) -> float:
    """Tokens per second once every stream decodes."""
    return streams * (count - 1) / (times.end - times.last_first)


def workloads(
    run: Callable[[Sequence[Prompt], int], Times], prompts: Prompts
) -> dict[str, Callable[[], float]]:
    """By name: one repeat, in tokens per second."""

    def shared() -> float:
        return 32 * 32 / run(prompts.sharing(32, 512, 32), 32).end

    def distinct() -> float:
        return 32 * 32 / run([prompts.make(544) for _ in range(32)], 32).end

    return {
        "one stream": lambda: decode_rate(run([prompts.make(128)], 65), 1, 65),
        "prefill 1024": lambda: 1024 / run([prompts.make(1024)], 1).end,
        "batch 8": lambda: decode_rate(run([prompts.make(128) for _ in range(8)], 49), 8, 49),
        "shared 512": shared,
        "distinct": distinct,
    }


def measure_ours(dtype: Dtype, threads: int, repeats: int) -> dict[str, float]:
    """Medians by workload, and the seconds from nothing to the first token."""
    begin = time.perf_counter()
    executor = CpuExecutor.load(DEFAULT_MODEL, dtype=dtype, threads=threads)
    engine = Engine(executor)
    prompts = Prompts()
    engine.run([prompts.make(40)], 1)
    found = {"first token s": time.perf_counter() - begin}
    for name, once in workloads(engine.run, prompts).items():
        found[name] = statistics.median(once() for _ in range(repeats))
    engine.close()
    return found


class Peer:
    """`transformers` with the same weights; batches of at most 8, as it has no scheduler."""

    def __init__(self, weights: Weights, dtype: Dtype, threads: int) -> None:
        import torch
        from transformers import LlamaConfig
        from transformers.cache_utils import DynamicCache
        from transformers.models.llama.modeling_llama import LlamaForCausalLM

        torch.set_num_threads(threads)
        config = weights.config
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocabulary,
                hidden_size=config.hidden,
                intermediate_size=config.intermediate,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.context_tokens,
                rms_norm_eps=config.norm_epsilon,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=True,
                pad_token_id=0,
                eos_token_id=None,
            )
        )
        state = {"model.embed_tokens.weight": weights.embedding, "lm_head.weight": weights.output}
        tensors = {name: matrix.as_float32() for name, matrix in state.items()}
        tensors["model.norm.weight"] = weights.final_norm
        for index, layer in enumerate(weights.layers):
            at = f"model.layers.{index}."
            tensors[f"{at}input_layernorm.weight"] = layer.attention_norm
            tensors[f"{at}post_attention_layernorm.weight"] = layer.mlp_norm
            for name, part in zip("qkv", layer.qkv.parts, strict=True):
                tensors[f"{at}self_attn.{name}_proj.weight"] = Matrix((part,)).as_float32()
            tensors[f"{at}self_attn.o_proj.weight"] = layer.attention_output.as_float32()
            for name in ("gate", "up", "down"):
                matrix: Matrix = {"gate": layer.gate, "up": layer.up, "down": layer.down}[name]
                tensors[f"{at}mlp.{name}_proj.weight"] = matrix.as_float32()
        made.load_state_dict({name: torch.as_tensor(array) for name, array in tensors.items()})
        kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        torch.nn.Module.to(made, kind)
        self._model = cast(Any, made.eval())
        self._torch = torch
        self._cache: Callable[[], Any] = DynamicCache

    def run(self, prompts: Sequence[Prompt], count: int) -> Times:
        """See Engine.run."""
        begin = time.perf_counter()
        first = 0.0
        for at in range(0, len(prompts), 8):
            ids = self._torch.as_tensor(np.stack(prompts[at : at + 8])).long()
            with self._torch.inference_mode():
                cache = self._cache()
                for _ in range(count):
                    out = self._model(ids, cache=cache, use_cache=True, logits_to_keep=1)
                    ids = out.logits[:, -1:].argmax(-1)
                    first = first or time.perf_counter() - begin
        return Times(first, time.perf_counter() - begin)


def measure_peer(weights: Weights, dtype: Dtype, threads: int) -> dict[str, float]:
    """As measure_ours, each workload once, until its time is up."""
    begin = time.perf_counter()
    peer = Peer(weights, dtype, threads)
    prompts = Prompts()
    peer.run([prompts.make(40)], 2)
    found: dict[str, float] = {}
    for name, once in workloads(peer.run, prompts).items():
        if name != "distinct" and time.perf_counter() - begin < PEER_LIMIT_S:
            found[name] = once()
    return found


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


def show(name: str, found: dict[str, float]) -> None:
    """One line of the table."""
    cells = [f"{found[work]:12.1f}" if work in found else f"{'-':>12}" for work in WORKLOADS]
    print(f"{name:24}", *cells)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--dtypes", default=",".join(get_args(Dtype)))
    options = parser.parse_args()
    weights = open_model(DEFAULT_MODEL).weights
    bandwidth = read_bandwidth(options.threads)
    print(
        f"threads {options.threads}, read bandwidth {bandwidth / 1e9:.1f} GB/s, tokens per second:"
    )
    print(f"{'':24}", *(f"{name:>12}" for name in WORKLOADS))
    result: dict[str, Any] = {
        "bench": "cpu",
        "commit": commit(),
        "threads": options.threads,
        "load": os.getloadavg()[0],
        "bandwidth_bytes_s": round(bandwidth),
    }
    for dtype in cast("list[Dtype]", options.dtypes.split(",")):
        ours = measure_ours(dtype, options.threads, options.repeats)
        floor = bandwidth / weight_bytes(weights, dtype)
        show(f"headrace {dtype}", ours)
        row: dict[str, Any] = {"headrace": ours, "floor one stream": floor}
        row["shared / distinct"] = ours["shared 512"] / ours["distinct"]
        row["one stream / floor"] = ours["one stream"] / floor
        if not options.no_peer and dtype != "packed":
            row["transformers"] = peer = measure_peer(weights, dtype, options.threads)
            show(f"transformers {dtype}", peer)
            row["ratios"] = {name: ours[name] / peer[name] for name in peer}
            show("  ratio", row["ratios"])
        print(
            f"  one stream by bytes alone {floor:.0f} (reached {row['one stream / floor']:.2f});"
            f" shared / distinct {row['shared / distinct']:.1f}; first token after"
            f" {ours['first token s']:.1f} s"
        )
        result[dtype] = row
    print(json.dumps(result, default=lambda x: float(x)))


def commit() -> str:
    """Short hash of what is measured."""
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
