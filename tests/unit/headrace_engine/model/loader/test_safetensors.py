"""Folders of safetensors, whole and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.opening import open_model
from support.hf_folders import HF_CONFIG, folder


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
