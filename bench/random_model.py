"""Writes a model folder with random weights in a published shape, for benches on a machine offline.

usage: random_model.py FOLDER llama8b|qwen06b|small [--device cuda]

The folder has config.json, a tokenizer of single bytes and made-up words, and sharded safetensors in
bfloat16, normal with deviation 0.02 (norms are ones), from one seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SHARD_BYTES = 4 << 30
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama8b": _LLAMA
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
    "qwen06b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "small": _LLAMA
    | {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    },
}
"""Llama-3.1-8B, Qwen3-0.6B, and one that any machine runs."""


def tensors(shape: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of every tensor, as Hugging Face names them."""
    hidden, width = shape["hidden_size"], shape["intermediate_size"]
    queries = shape["num_attention_heads"] * shape["head_dim"]
    keys = shape["num_key_value_heads"] * shape["head_dim"]
    yield "model.embed_tokens.weight", (shape["vocab_size"], hidden)
    for index in range(shape["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        yield layer + "self_attn.q_proj.weight", (queries, hidden)
        yield layer + "self_attn.k_proj.weight", (keys, hidden)
        yield layer + "self_attn.v_proj.weight", (keys, hidden)
        yield layer + "self_attn.o_proj.weight", (hidden, queries)
        if shape["model_type"] == "qwen3":
            yield layer + "self_attn.q_norm.weight", (shape["head_dim"],)
            yield layer + "self_attn.k_norm.weight", (shape["head_dim"],)
        yield layer + "mlp.gate_proj.weight", (width, hidden)
        yield layer + "mlp.up_proj.weight", (width, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, width)
        yield layer + "input_layernorm.weight", (hidden,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (shape["vocab_size"], hidden)


def write_weights(folder: Path, shape: dict[str, Any], device: str) -> None:
    """The shards and their index."""
    generator = torch.Generator(device).manual_seed(0)
    shard: dict[str, torch.Tensor] = {}
    places: dict[str, str] = {}
    total = held = 0

    def flush() -> None:
        nonlocal held
        name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
        save_file(shard, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
        shard.clear()
        held = 0

    for name, size in tensors(shape):
        values = torch.ones(size, dtype=torch.bfloat16, device=device)
        if not name.endswith("norm.weight"):
            values.normal_(0, 0.02, generator=generator)
        shard[name] = values.cpu()
        total += values.nbytes
        held += values.nbytes
        if held >= SHARD_BYTES:
            flush()
    if shard:
        flush()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_model(folder: Path, name: str, device: str = "cpu") -> Path:
    """Writes the model ``name`` of ``SHAPES``; returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    shape = SHAPES[name]
    config = shape | {"torch_dtype": "bfloat16", "hidden_act": "silu", "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    # Every id has a text, so that streams of random tokens are as long as real ones.
    words = alphabet + [f"Ġ{i:x}" for i in range(len(alphabet), shape["vocab_size"])]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": alphabet[0]})
    )
    write_weights(folder, shape, device)
    return folder


def main() -> None:
    """Writes what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=list(SHAPES))
    parser.add_argument("--device", default="cpu")
    flags = parser.parse_args()
    print(write_model(flags.folder, flags.shape, flags.device))


if __name__ == "__main__":
    main()
