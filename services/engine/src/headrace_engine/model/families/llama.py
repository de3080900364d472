"""Llama and its likes: configuration and tensor names.

Qwen2 differs by biases on Q, K and V; Qwen3 by norms on each head of Q and K.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from headrace_engine.errors import ModelRejected
from headrace_engine.model.config import LinearScaling, Llama3Scaling, ModelConfig, RopeScaling
from headrace_engine.model.loader.gguf_header import GgufHeader, GgufValue

HF_ARCHITECTURES: Final = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
GGUF_ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")

HF_NAMES: Final = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "output": "lm_head.weight",
    "attention_norm": "model.layers.{}.input_layernorm.weight",
    "query": "model.layers.{}.self_attn.q_proj.weight",
    "key": "model.layers.{}.self_attn.k_proj.weight",
    "value": "model.layers.{}.self_attn.v_proj.weight",
    "query_bias": "model.layers.{}.self_attn.q_proj.bias",
    "key_bias": "model.layers.{}.self_attn.k_proj.bias",
    "value_bias": "model.layers.{}.self_attn.v_proj.bias",
    "query_norm": "model.layers.{}.self_attn.q_norm.weight",
    "key_norm": "model.layers.{}.self_attn.k_norm.weight",
    "attention_output": "model.layers.{}.self_attn.o_proj.weight",
    "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
    "gate": "model.layers.{}.mlp.gate_proj.weight",
    "up": "model.layers.{}.mlp.up_proj.weight",
    "down": "model.layers.{}.mlp.down_proj.weight",
}
GGUF_NAMES: Final = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "output": "output.weight",
    "rope_factors": "rope_freqs.weight",
    "attention_norm": "blk.{}.attn_norm.weight",
    "query": "blk.{}.attn_q.weight",
    "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight",
    "query_bias": "blk.{}.attn_q.bias",
    "key_bias": "blk.{}.attn_k.bias",
    "value_bias": "blk.{}.attn_v.bias",
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    "attention_output": "blk.{}.attn_output.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
}


def hf_architecture(path: Path, config: Mapping[str, object]) -> str:
    """The architecture that ``config.json`` names. Raises ModelRejected for an unknown one."""
    names = config.get("architectures")
    name = str(cast("list[object]", names)[0]) if isinstance(names, list) and names else "none"
    if name not in HF_ARCHITECTURES:
        raise ModelRejected(
            f"{path / 'config.json'}: unknown architecture {name}; known are"
            f" {', '.join(HF_ARCHITECTURES)}"
        )
    return HF_ARCHITECTURES[name]


def gguf_architecture(header: GgufHeader) -> str:
    """The architecture that GGUF metadata name. Raises ModelRejected for an unknown one."""
    architecture = str(header.metadata.get("general.architecture"))
    if architecture not in GGUF_ARCHITECTURES:
        raise ModelRejected(
            f"{header.path}: unknown architecture {architecture}; known are"
            f" {', '.join(GGUF_ARCHITECTURES)}"
        )
    return architecture


def config_from_hf(path: Path, config: Mapping[str, object], *, output_stored: bool) -> ModelConfig:
    """Reads ``config.json``. ``output_stored``: whether the folder has an output matrix.

    Raises ModelRejected for what this executor does not compute, by name.
    """
    read = _Reader(path / "config.json", config)
    architecture = hf_architecture(path, config)
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelRejected(f"{read.origin}: hidden_act {activation!r} is not computed, only silu")
    if (quantization := config.get("quantization_config")) is not None:
        method: object = quantization
        if isinstance(quantization, dict):
            method = cast("dict[str, object]", quantization).get("quant_method", "unnamed")
        raise ModelRejected(
            f"{read.origin}: weights are quantized by {method}, which is not read; read are plain "
            "float32, float16 and bfloat16, and 4-bit GGUF files"
        )
    for flag in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(flag):
            raise ModelRejected(f"{read.origin}: {flag} is not supported")
    heads = read.count("num_attention_heads")
    hidden = read.count("hidden_size")
    tied = bool(config.get("tie_word_embeddings", False))
    if not tied and not output_stored:
        raise ModelRejected(
            f"{path}: tensor {HF_NAMES['output']} is missing, and embeddings are not tied"
        )
    theta, scaling = _hf_rope(read)
    return _checked(
        read.origin,
        ModelConfig(
            name=path.resolve().name,
            architecture=architecture,
            vocabulary=read.count("vocab_size"),
            context_tokens=read.count("max_position_embeddings"),
            layers=read.count("num_hidden_layers"),
            hidden=hidden,
            intermediate=read.count("intermediate_size"),
            heads=heads,
            kv_heads=read.count("num_key_value_heads", heads),
            head_dim=read.count("head_dim", hidden // heads),
            norm_epsilon=read.number("rms_norm_eps"),
            rope_theta=theta,
            rope_scaling=scaling,
            tied_output=tied,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            eos_token_ids=read.ids("eos_token_id"),
        ),
    )


def config_from_gguf(header: GgufHeader) -> ModelConfig:
    """Reads GGUF metadata. Raises ModelRejected for what this executor does not compute."""
    architecture = gguf_architecture(header)
    read = _Reader(header.path, _without_prefix(header.metadata, f"{architecture}."))
    heads = read.count("attention.head_count")
    hidden = read.count("embedding_length")
    embedding = header.tensors.get(GGUF_NAMES["embedding"])
    if embedding is None:
        raise ModelRejected(f"{header.path}: tensor {GGUF_NAMES['embedding']} is missing")
    head_dim = read.count("attention.key_length", hidden // heads)
    if read.count("rope.dimension_count", head_dim) != head_dim:
        raise ModelRejected(f"{header.path}: rotating only a part of each head is not supported")
    eos = header.metadata.get("tokenizer.ggml.eos_token_id")
    return _checked(
        header.path,
        ModelConfig(
            name=header.path.stem,
            architecture=architecture,
            vocabulary=embedding.shape[0],
            context_tokens=read.count("context_length"),
            layers=read.count("block_count"),
            hidden=hidden,
            intermediate=read.count("feed_forward_length"),
            heads=heads,
            kv_heads=read.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            norm_epsilon=read.number("attention.layer_norm_rms_epsilon"),
            rope_theta=read.number("rope.freq_base", 10000.0),
            rope_scaling=_gguf_scaling(read),
            tied_output=GGUF_NAMES["output"] not in header.tensors,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
            eos_token_ids=(int(eos),) if isinstance(eos, int) else (),
        ),
    )


class _Reader:
    """Typed look-ups that name the file and the key when something is wrong."""

    def __init__(self, origin: Path, values: Mapping[str, object]) -> None:
        self.origin = origin
        self.values = values

    def count(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelRejected(f"{self.origin}: {key} is {value!r}, expected a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        value = default if value is None else value
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value < math.inf
        ):
            raise ModelRejected(f"{self.origin}: {key} is {value!r}, expected a positive number")
        return float(value)

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        ids = tuple(item for item in items if isinstance(item, int))
        if len(ids) != len(items):
            raise ModelRejected(f"{self.origin}: {key} is {value!r}, expected token ids")
        return ids


def _without_prefix(metadata: Mapping[str, GgufValue], prefix: str) -> dict[str, object]:
    return {
        key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)
    }


def _hf_rope(read: _Reader) -> tuple[float, RopeScaling | None]:
    """Both spellings: ``rope_theta`` with ``rope_scaling``, and the newer ``rope_parameters``."""
    rope: dict[str, object] = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = read.values.get(key)
        if isinstance(value, dict):
            rope = cast("dict[str, object]", value)
        elif value is not None:
            raise ModelRejected(f"{read.origin}: {key} is {value!r}, expected an object")
    inner = _Reader(read.origin, rope)
    theta = inner.number("rope_theta") if "rope_theta" in rope else read.number("rope_theta", 1e4)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind == "linear":
        return theta, LinearScaling(inner.number("factor"))
    if kind == "llama3":
        return theta, Llama3Scaling(
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_context_tokens=inner.count("original_max_position_embeddings"),
        )
    raise ModelRejected(f"{read.origin}: rope scaling {kind!r} is not supported")


def _gguf_scaling(read: _Reader) -> RopeScaling | None:
    kind = read.values.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return LinearScaling(read.number("rope.scaling.factor"))
    raise ModelRejected(f"{read.origin}: rope scaling {kind!r} is not supported")


def _checked(origin: Path, config: ModelConfig) -> ModelConfig:
    if config.heads % config.kv_heads:
        raise ModelRejected(
            f"{origin}: {config.heads} heads cannot share {config.kv_heads} key-value heads"
        )
    if config.head_dim % 2:
        raise ModelRejected(f"{origin}: a head of {config.head_dim} dimensions cannot be rotated")
    return config
