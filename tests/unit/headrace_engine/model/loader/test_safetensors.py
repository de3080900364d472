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


@pytest.mark.parametrize("outside", ["../model.safetensors", "a/../../model.safetensors", "/etc/x"])
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, outside: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (folder(tmp_path, HF_CONFIG) / "config.json").rename(inner / "config.json")
    index = {"weight_map": {"a": outside}}
    (inner / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelRejected, match=r"index\.json: .* lies outside the folder"):
        open_model(str(inner))


def test_a_configuration_of_brackets_is_refused(tmp_path: Path) -> None:
    (folder(tmp_path, HF_CONFIG) / "config.json").write_text("[" * 200_000)
    with pytest.raises(ModelRejected, match=r"config\.json: is not JSON"):
        open_model(str(tmp_path))


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ({"a": {"shape": ["84"]}}, "whole number"),
        ({"a": {"shape": [None]}}, "whole number"),
        ({"a": {"shape": [84.0]}}, "whole number"),
        ({"a": {"shape": [-3, -4]}}, "whole number"),
        ({"a": {"shape": [0]}}, "whole number"),
        ({"a": {"data_offsets": [0.5, 336.5]}}, "whole number"),
        ({"a": {"data_offsets": [-336, 0]}}, "whole number"),
        ({"a": {"data_offsets": [336, 0]}}, "ends before it begins"),
        ({"a": {}, "b": {"data_offsets": [4, 340]}}, "b and a have bytes in common"),
    ],
)
def test_a_header_that_says_what_cannot_be_is_refused(
    tmp_path: Path, entries: dict[str, dict[str, object]], why: str
) -> None:
    plain = {"dtype": "F32", "shape": [84], "data_offsets": [0, 336]}
    header = json.dumps({name: plain | entry for name, entry in entries.items()}).encode()
    path = folder(tmp_path, HF_CONFIG) / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(340))
    with pytest.raises(ModelRejected, match=f"header is damaged: .*{why}"):
        open_model(str(tmp_path))


def test_a_header_of_brackets_is_refused(tmp_path: Path) -> None:
    header = b"[" * 200_000
    path = folder(tmp_path, HF_CONFIG) / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelRejected, match="header is damaged"):
        open_model(str(tmp_path))
