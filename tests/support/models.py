"""Tiny random models of the llama family, made with transformers, which is also their reference."""

# transformers ships types with holes.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, Qwen2Config, Qwen3Config
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}

TINY: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 84,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
}
"""Sizes that fill no vector, group or panel exactly, so that padding is exercised."""


def tiny_model(family: str = "llama", *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model whose logits differ clearly between tokens."""
    torch.manual_seed(seed)
    config = CONFIGS[family](**{**TINY, **changes})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.5)
            elif "norm" in name:
                weight.normal_(1, 0.2)
            else:
                weight.normal_(0, 0.15)
    return model.eval()


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The model in bfloat16."""
    torch.nn.Module.to(model, torch.bfloat16)
    return model


def save(model: PreTrainedModel, folder: Path, *, shard: str = "10GB") -> Path:
    """Writes ``config.json`` and safetensors into ``folder``; returns it."""
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def reopened(folder: Path) -> PreTrainedModel:
    """What was saved, in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def logits_of(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """``float32[tokens, vocabulary]``."""
    return model(torch.tensor([tokens])).logits[0].float()


def is_greedy(model: PreTrainedModel, prompt: list[int], tokens: list[int]) -> bool:
    """Whether each token is the model's most likely one after everything before it."""
    logits = logits_of(model, [*prompt, *tokens])
    likely: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return likely == tokens
