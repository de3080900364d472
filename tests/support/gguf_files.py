"""Small GGUF files, whole and damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from numpy.typing import NDArray

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 64, 96, 4, 2, 16, 96


def tensors(layers: int = 2, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights of a llama by their GGUF names."""
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (0.2 * random.standard_normal(shape)).astype(np.float32)

    found = {
        "token_embd.weight": matrix(VOCABULARY, HIDDEN),
        "output_norm.weight": 1 + matrix(HIDDEN),
    }
    for layer in range(layers):
        found |= {
            f"blk.{layer}.attn_norm.weight": 1 + matrix(HIDDEN),
            f"blk.{layer}.attn_q.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v.weight": matrix(KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm.weight": 1 + matrix(HIDDEN),
            f"blk.{layer}.ffn_gate.weight": matrix(WIDE, HIDDEN),
            f"blk.{layer}.ffn_up.weight": matrix(WIDE, HIDDEN),
            f"blk.{layer}.ffn_down.weight": matrix(HIDDEN, WIDE),
        }
    return found


def write(
    path: Path,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    layers: int = 2,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    architecture: str = "llama",
) -> Path:
    """Writes a GGUF file; vectors stay float32."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_eos_token_id(2)
    writer.add_array("some.words", ["a", "b", "é"])
    for name, values in weights.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
