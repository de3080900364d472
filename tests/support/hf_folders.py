"""Small Hugging Face folders without weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def folder(path: Path, config: dict[str, Any], **changes: Any) -> Path:
    """``config.json`` with changes, and a safetensors file that holds nothing."""
    (path / "config.json").write_text(json.dumps(config | changes))
    header = b"{}"
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return path
