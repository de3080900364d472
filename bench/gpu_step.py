"""What one step costs on a CUDA device, without a scheduler: decode by batch size, and prefill.

Random weights of two shapes are made on the device. Prints milliseconds a step beside the time
that the weights' bytes alone take at the measured copy bandwidth, and ends with one JSON line.

usage: gpu_step.py [llama8b] [qwen06b]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.cuda import CudaExecutor
from headrace_engine.model.config import ModelConfig, rope_frequencies, rope_table
from headrace_engine.model.cuda_weights import CudaLayer, CudaWeights
from headrace_engine.state.batch import BatchData, SlotSampling, SlotStart

BLOCK_TOKENS = 64
CONTEXT = 640
PROMPT = 512


def config(name: str) -> ModelConfig:
    """The published shapes."""
    llama = name == "llama8b"
    return ModelConfig(
        name=name,
        architecture="llama" if llama else "qwen3",
        vocabulary=128256 if llama else 151936,
        context_tokens=16384,
        layers=32 if llama else 28,
        hidden=4096 if llama else 1024,
        intermediate=14336 if llama else 3072,
        heads=32 if llama else 16,
        kv_heads=8,
        head_dim=128,
        norm_epsilon=1e-5 if llama else 1e-6,
        rope_theta=500000.0 if llama else 1000000.0,
        rope_scaling=None,
        tied_output=not llama,
        qkv_bias=False,
        qk_norm=not llama,
        eos_token_ids=(),
    )


def random_weights(shape: ModelConfig, device: torch.device) -> CudaWeights:
    """Weights of the right shapes, normal with deviation 0.02."""
    generator = torch.Generator(device).manual_seed(0)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        values = torch.empty(outputs, inputs, dtype=torch.bfloat16, device=device)
        return values.normal_(0, 0.02, generator=generator)

    def ones(width: int) -> torch.Tensor:
        return torch.ones(width, dtype=torch.bfloat16, device=device)

    normed = shape.architecture == "qwen3"
    layers = tuple(
        CudaLayer(
            attention_norm=ones(shape.hidden),
            qkv=matrix(shape.qkv_width, shape.hidden),
            qkv_bias=None,
            query_norm=ones(shape.head_dim) if normed else None,
            key_norm=ones(shape.head_dim) if normed else None,
            attention_output=matrix(shape.hidden, shape.heads * shape.head_dim),
            mlp_norm=ones(shape.hidden),
            gate_up=matrix(2 * shape.intermediate, shape.hidden),
            down=matrix(shape.hidden, shape.intermediate),
        )
        for _ in range(shape.layers)
    )
    embedding = matrix(shape.vocabulary, shape.hidden)
    rope = rope_table(rope_frequencies(shape), shape.context_tokens)
    return CudaWeights(
        config=shape,
        embedding=embedding,
        output=embedding if shape.tied_output else matrix(shape.vocabulary, shape.hidden),
        final_norm=ones(shape.hidden),
        rope=torch.as_tensor(rope).to(device),
        layers=layers,
    )


def sampling(temperature: float, top_p: float) -> SlotSampling:
    """Parameters of one slot."""
    return SlotSampling(
        temperature=temperature,
        top_k=0,
        top_p=top_p,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        bias_ids=(),
        bias_values=(),
        seed=1,
        stop_token_ids=frozenset(),
        min_new_tokens=0,
        logprobs=None,
        attempt=1,
    )


class Driver:
    """Makes batches for slots whose blocks lie one after the other."""

    def __init__(self, executor: CudaExecutor, slots: int) -> None:
        self.executor = executor
        self.blocks = -(-CONTEXT // BLOCK_TOKENS) + 1
        self.size = executor.block_bytes(BLOCK_TOKENS)
        self.passes = 0

    def batch(
        self,
        slots: Sequence[int],
        begins: Sequence[int],
        lengths: Sequence[int],
        starts: list[SlotStart],
        blocks: int = 0,
    ) -> BatchData:
        """A batch in which every row generates."""
        per = blocks or self.blocks
        rows = len(slots)
        table = [(s, b, (s * per + b) * self.size) for s in slots for b in range(per)]
        table = table if starts else []
        self.passes += 1
        tokens = np.random.default_rng(self.passes).integers(0, 10000, sum(lengths))
        return BatchData(
            pass_id=self.passes,
            phase=self.passes % 2,
            generating=rows,
            slots=np.array(slots, np.int32),
            begins=np.array(begins, np.int32),
            lengths=np.array(lengths, np.int32),
            autoregressive=np.array([not starts] * rows),
            sample_indices=np.zeros(rows, np.int32),
            tokens=tokens.astype(np.int32),
            token_offsets=np.cumsum([0, *lengths]).astype(np.int32),
            store_from=np.zeros(rows, np.int32),
            table_slots=np.array([t[0] for t in table], np.int32),
            table_indices=np.array([t[1] for t in table], np.int32),
            table_offsets=np.array([t[2] for t in table], np.int64),
            starts=starts,
        )

    def steps(self, rows: int, count: int, chosen: SlotSampling) -> float:
        """Milliseconds a decode step, two batches in flight, context growing from PROMPT."""
        start = [SlotStart(slot, np.zeros(1, np.int32), 1, 0, chosen) for slot in range(rows)]
        waiting: list[BatchData] = []
        begun = 0.0
        for index in range(count + 4):
            batch = self.batch(
                range(rows), [PROMPT + index] * rows, [1] * rows, start if index == 0 else []
            )
            if index == 4:
                torch.cuda.synchronize()
                begun = time.perf_counter()
            self.executor.submit(batch)
            waiting.append(batch)
            if len(waiting) == 2:
                self.executor.collect(waiting.pop(0))
        for batch in waiting:
            self.executor.collect(batch)
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) / count * 1e3

    def prefill(self, length: int, rows: int) -> float:
        """Milliseconds of one batch that prefills ``rows`` prompts."""
        per = -(-length // BLOCK_TOKENS) + 1
        start = [
            SlotStart(slot, np.zeros(1, np.int32), 1, 0, sampling(0, 1)) for slot in range(rows)
        ]
        batch = self.batch(range(rows), [0] * rows, [length] * rows, start, per)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        self.executor.submit(batch)
        self.executor.collect(batch)
        return (time.perf_counter() - begun) * 1e3


def median(measure: Callable[[], float], repeats: int = 3) -> float:
    """Median of a few runs after one that is not counted."""
    measure()
    return statistics.median(measure() for _ in range(repeats))


def copy_bandwidth() -> float:
    """Bytes a second of a large device copy, read and written."""
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times: list[float] = []
    for _ in range(8):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        target.copy_(source)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1e3)
    return 2 * source.nbytes / statistics.median(times)


def run(name: str, bandwidth: float) -> dict[str, float]:
    """Every figure of one shape."""
    device = torch.device("cuda")
    shape = config(name)
    weights = random_weights(shape, device)
    executor = CudaExecutor(weights)
    slots = 256
    per = max(-(-CONTEXT // BLOCK_TOKENS) + 1, 16384 // BLOCK_TOKENS // 8)
    region = executor.block_bytes(BLOCK_TOKENS) * slots * per
    begun = time.perf_counter()
    executor.start(
        ExecutorLimits(
            slots=slots,
            batch_tokens=8192 + slots,
            sequence_tokens=16384,
            block_tokens=BLOCK_TOKENS,
            region_bytes=region,
            phases=2,
        )
    )
    result = {"start_s": time.perf_counter() - begun}
    driver = Driver(executor, slots)
    result["floor_1"] = (weights.size - weights.rope.nbytes) / bandwidth * 1e3
    for rows in (1, 32, 128, 256):
        result[f"greedy_{rows}"] = median(lambda rows=rows: driver.steps(rows, 64, sampling(0, 1)))
    for rows in (1, 256):
        result[f"sampled_{rows}"] = median(
            lambda rows=rows: driver.steps(rows, 64, sampling(1.0, 0.95))
        )
    result["prefill_128"] = median(lambda: driver.prefill(128, 1))
    result["prefill_8192"] = median(lambda: driver.prefill(8192, 1))
    result["prefill_4x2048"] = median(lambda: driver.prefill(2048, 4))
    executor.close()
    return result


def main() -> None:
    """Prints a table and one JSON line."""
    names = sys.argv[1:] or ["llama8b", "qwen06b"]
    bandwidth = copy_bandwidth()
    print(
        f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}"
    )
    results: dict[str, object] = {"copy_tbps": bandwidth / 1e12}
    for name in names:
        results[name] = figures = run(name, bandwidth)
        for key, value in figures.items():
            print(f"{name:8} {key:16} {value:9.3f}")
        torch.cuda.empty_cache()
    print(json.dumps(results))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
