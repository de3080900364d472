"""What is refused, and with which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from gguf import dequantize, quantize
from headrace_engine.errors import ModelRejected
from headrace_engine.model.layers import Matrix
from headrace_engine.model.loader.formats import Format, as_float32
from headrace_engine.model.loader.gguf import GgufCheckpoint
from headrace_engine.model.opening import open_model
from support import gguf_files

STORED = {
    Quantization.F32: 1e-9,
    Quantization.F16: 2e-3,
    Quantization.BF16: 2e-2,
    Quantization.Q4_0: 0.2,
    Quantization.Q4_1: 0.2,
    Quantization.Q8_0: 2e-2,
}


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


def test_rows_of_q_and_k_are_put_straight_and_v_is_left(model: Path) -> None:
    stored = gguf_files.tensors()
    layer = open_model(str(model)).weights.layers[1]
    query, key, value = (as_float32(part) for part in layer.qkv.parts)
    pairs = stored["blk.1.attn_q.weight"].reshape(4, 8, 2, 64)
    assert np.array_equal(query.reshape(4, 2, 8, 64), pairs.swapaxes(1, 2))
    assert np.array_equal(key[8], stored["blk.1.attn_k.weight"][1])
    assert np.array_equal(value, stored["blk.1.attn_v.weight"])


@pytest.mark.parametrize("quantization", list(STORED))
def test_every_stored_format_is_read(quantization: Quantization, tmp_path: Path) -> None:
    stored = gguf_files.tensors()
    path = gguf_files.write(tmp_path / "q.gguf", stored, quantization=quantization)
    down = open_model(str(path)).weights.layers[0].down
    assert down.formats == {Format(quantization.value)}
    exact = dequantize(quantize(stored["blk.0.ffn_down.weight"], quantization), quantization)
    assert np.array_equal(down.as_float32(), exact)
    assert np.abs(down.as_float32() - stored["blk.0.ffn_down.weight"]).max() < STORED[quantization]


def test_a_different_weight_gives_a_different_digest(tmp_path: Path) -> None:
    weights = gguf_files.tensors()
    first = open_model(str(gguf_files.write(tmp_path / "a.gguf", weights))).digest
    again = open_model(str(gguf_files.write(tmp_path / "b.gguf", weights))).digest
    weights["blk.1.ffn_down.weight"][3, 3] += 1
    other = open_model(str(gguf_files.write(tmp_path / "c.gguf", weights))).digest
    assert first == again
    assert first != other


def test_a_wrong_sha256_is_refused_with_both(model: Path) -> None:
    with pytest.raises(ModelRejected, match=r"tiny\.gguf: SHA-256 is [0-9a-f]{64}, expected 00"):
        open_model(str(model), sha256="00" * 32)


@pytest.mark.parametrize("cut", [10, 200, 2_000])
def test_a_file_cut_in_its_header_is_refused(cut: int, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:cut])
    with pytest.raises(ModelRejected, match=r"tiny\.gguf: .*(truncated|too few)"):
        open_model(str(model))


def test_a_file_cut_in_its_weights_names_the_tensor_and_both_sizes(model: Path) -> None:
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) - 10_000])
    with pytest.raises(
        ModelRejected,
        match=rf"tensor blk\.1\.\S+ is truncated: .* the file has {len(whole) - 10_000}",
    ):
        open_model(str(model))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    weights = gguf_files.tensors()
    del weights["blk.1.ffn_up.weight"]
    path = gguf_files.write(tmp_path / "m.gguf", weights)
    with pytest.raises(ModelRejected, match=r"m\.gguf: tensor blk\.1\.ffn_up\.weight is missing"):
        open_model(str(path))


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = gguf_files.tensors()
    weights["blk.0.attn_v.weight"] = np.zeros((32, 96), np.float32)
    path = gguf_files.write(tmp_path / "s.gguf", weights)
    with pytest.raises(
        ModelRejected, match=r"attn_v\.weight has shape \[32, 96\], expected \[32, 64\]"
    ):
        open_model(str(path))


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(tmp_path / "x.gguf", gguf_files.tensors(), architecture="mamba")
    with pytest.raises(
        ModelRejected, match=r"x\.gguf: unknown architecture mamba; known are llama"
    ):
        open_model(str(path))


def test_an_unknown_quantization_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "q.gguf", gguf_files.tensors(), quantization=Quantization.Q5_0
    )
    with pytest.raises(ModelRejected, match=r"tensor \S+ is quantized as Q5_0; read are F32"):
        open_model(str(path))


def test_something_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"MZ" * 100)
    with pytest.raises(ModelRejected, match="not a GGUF file"):
        open_model(str(tmp_path / "a.gguf"))
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ModelRejected, match=r"expected a folder with config\.json, or a \.gguf"):
        open_model(str(tmp_path / "a.bin"))
    with pytest.raises(ModelRejected, match=r"config\.json: cannot be read"):
        open_model(str(tmp_path))


def test_metadata_lists_are_read(model: Path) -> None:
    assert GgufCheckpoint(model).header.metadata["some.words"] == ["a", "b", "é"]


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
    (path / "config.json").write_text(json.dumps(config | changes))
    header = b"{}"
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
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


def test_a_truncated_safetensors_header_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, HF_CONFIG) / "model.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelRejected, match=r"model\.safetensors: truncated or not safetensors"):
        open_model(str(tmp_path))
    path.write_bytes(b"abc")
    with pytest.raises(ModelRejected, match="truncated: shorter than a header"):
        open_model(str(tmp_path))


def test_truncated_safetensors_weights_name_the_tensor(tmp_path: Path) -> None:
    name = "model.embed_tokens.weight"
    entry = {name: {"dtype": "F32", "shape": [96, 64], "data_offsets": [0, 96 * 64 * 4]}}
    path = folder(tmp_path, HF_CONFIG) / "model.safetensors"
    header = json.dumps(entry).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1000))
    with pytest.raises(ModelRejected, match=rf"tensor {name} is truncated: it ends at byte"):
        open_model(str(tmp_path))
    entry[name]["dtype"] = "F64"
    header = json.dumps(entry).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(96 * 64 * 4))
    with pytest.raises(ModelRejected, match="is stored as F64; read are F32, F16, BF16"):
        open_model(str(tmp_path))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(HF_CONFIG))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ModelRejected, match=r"model-00001-of-00002\.safetensors: named by the index"
    ):
        open_model(str(tmp_path))


def test_a_matrix_is_its_parts_one_below_the_other(model: Path) -> None:
    qkv = open_model(str(model)).weights.layers[0].qkv
    assert (qkv.outputs, qkv.inputs) == (64 + 32 + 32, 64)
    rows = [as_float32(part) for part in qkv.parts]
    assert np.array_equal(qkv.as_float32(), np.concatenate(rows))
    assert Matrix(qkv.parts[:1]).stored_bytes == 64 * 64 * 4
