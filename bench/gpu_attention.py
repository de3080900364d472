"""From which length on is a whole prompt faster by cuDNN than by our kernel? Attention alone, a layer.

Prompts without cached context, as one mixed step has them: cuDNN's causal attention within the prompt, and
``prefill_attention`` over the same keys and values in blocks. Medians of graph replays; ends with one JSON line.

usage: gpu_attention.py [llama8b] [qwen06b]
"""

# Torch is not typed throughout.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable

import torch
from gpu_step import BLOCK_TOKENS, config
from headrace_engine.kernels.gpu.prefill_attention import prefill_attention, tile_tokens
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTHS = (1024, 2048, 3072, 4096, 6144, 8192)
REPLAYS = 20
LAYERS = 4
"""Each replay has attention of so many layers, so that none finds its keys where it left them."""


def milliseconds(attend: Callable[[int], None]) -> float:
    """One layer's attention: the median over replays of a graph of ``LAYERS``."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for layer in range(LAYERS):
                attend(layer)
        times: list[float] = []
        for _ in range(REPLAYS):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(stream)
            graph.replay()
            last.record(stream)
            last.synchronize()
            times.append(first.elapsed_time(last) / LAYERS)
    return statistics.median(times)


def compare(name: str, length: int) -> dict[str, float]:
    """Both kernels on one prompt: milliseconds, TFLOP/s, and how far the results lie apart."""
    shape = config(name)
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(length)
    qkv = torch.randn(
        (length, shape.qkv_width), dtype=torch.bfloat16, device=device, generator=generator
    )
    blocks = -(-length // BLOCK_TOKENS)
    block = LAYERS * 2 * kv_heads * BLOCK_TOKENS * dim
    # Blocks lie scattered, as after some hours.
    order = torch.randperm(blocks, device=device, generator=generator)
    table = (order * block).view(1, blocks)
    region = torch.zeros(blocks * block, dtype=torch.bfloat16, device=device)
    view = region.view(blocks, LAYERS, 2, kv_heads, BLOCK_TOKENS, dim)
    padded = torch.zeros(
        (blocks * BLOCK_TOKENS, shape.qkv_width), dtype=torch.bfloat16, device=device
    )
    padded[:length] = qkv
    # [keys and values, kv_heads, blocks, block_tokens, dim] into blocks of the table's order.
    stored = (
        padded[:, heads * dim :].view(blocks, BLOCK_TOKENS, 2, kv_heads, dim).permute(0, 2, 3, 1, 4)
    )
    for layer in range(LAYERS):
        view[order, layer] = stored
    step = tile_tokens(heads, kv_heads)
    # The last tiles take longest, and come first.
    tiles = [[first, min(step, length - first)] for first in range(0, length, step)][::-1]
    columns = (
        torch.tensor(tiles, dtype=torch.int32, device=device),
        torch.zeros(length, dtype=torch.int32, device=device),
        torch.arange(length, dtype=torch.int32, device=device),
    )
    out = torch.full((length, heads * dim), float("nan"), dtype=torch.bfloat16, device=device)
    split = qkv.view(1, length, -1, dim).transpose(1, 2)
    query, key, value = split.split([heads, kv_heads, kv_heads], 1)
    whole = torch.empty(0)

    def ours(layer: int) -> None:
        prefill_attention(
            qkv,
            *columns,
            table,
            region,
            out,
            layer=layer,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            block_tokens=BLOCK_TOKENS,
        )

    def cudnn(_: int) -> None:
        nonlocal whole
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            whole = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )

    with torch.inference_mode():
        figures = {"ours_ms": milliseconds(ours), "cudnn_ms": milliseconds(cudnn)}
    expected = whole.transpose(1, 2).reshape(length, -1).double()
    distance = (out.double() - expected).norm() / expected.norm()
    operations = 2 * length * length * heads * dim
    rates = {f"{who}_tflops": operations / figures[f"{who}_ms"] / 1e9 for who in ("ours", "cudnn")}
    return figures | rates | {"relative_distance": float(distance)}


def main() -> None:
    """Prints a table and one JSON line."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in sys.argv[1:] or ["llama8b", "qwen06b"]:
        results[name] = {}
        for length in LENGTHS:
            results[name][f"{length}"] = figures = compare(name, length)
            said = "  ".join(f"{key} {value:.3f}" for key, value in figures.items())
            print(f"{name:8} {length:6} {said}", flush=True)
    print(json.dumps({"device": torch.cuda.get_device_name(), "a_layer": results}))


if __name__ == "__main__":
    main()
