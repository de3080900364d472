"""Configurations of the llama family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.opening import open_model
from support import gguf_files
from support.hf_folders import HF_CONFIG, folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors())


def test_gguf_metadata_decides_the_configuration(model: Path) -> None:
    opened = open_model(str(model))
    config = opened.weights.config
    assert (config.layers, config.hidden, config.intermediate) == (2, 64, 96)
    assert (config.heads, config.kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocabulary, config.context_tokens) == (96, 256)
    assert config.tied_output
    assert config.eos_token_ids == (2,)
    assert config.name == "tiny"
    assert opened.weights.output is opened.weights.embedding


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.tensors(), architecture="mamba")
    with pytest.raises(
        ModelRejected, match=r"x\.gguf: unknown architecture mamba; known are llama"
    ):
        open_model(str(path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "weights are quantized by gptq, which is not read",
        ),
        ({"rope_parameters": [1]}, "rope_parameters is [1], expected an object"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": float("inf")}},
            "factor is inf, expected a positive number",
        ),
        ({"architectures": ["MambaForCausalLM"]}, "unknown architecture MambaForCausalLM"),
        ({"architectures": None}, "unknown architecture none"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope scaling 'yarn'"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 key-value heads"),
        ({"hidden_size": "many"}, "hidden_size is 'many', expected a positive integer"),
        ({"rms_norm_eps": None}, "rms_norm_eps is None, expected a positive number"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
        ({}, "tensor model.embed_tokens.weight is missing"),
    ],
)
def test_a_folder_is_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelRejected) as caught:
        open_model(str(folder(tmp_path, HF_CONFIG, **changes)))
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
