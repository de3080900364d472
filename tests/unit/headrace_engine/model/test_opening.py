"""From a path to a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.opening import open_model, read_config
from support import gguf_files
from support.hf_folders import HF_CONFIG, folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors())


def test_a_wrong_sha256_is_refused_with_both(model: Path) -> None:
    with pytest.raises(ModelRejected, match=r"tiny\.gguf: SHA-256 is [0-9a-f]{64}, expected 00"):
        open_model(str(model), sha256="00" * 32)


def test_something_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"MZ" * 100)
    with pytest.raises(ModelRejected, match="not a GGUF file"):
        open_model(str(tmp_path / "a.gguf"))
    (tmp_path / "a.bin").write_bytes(b"")
    with pytest.raises(ModelRejected, match=r"expected a folder with config\.json, or a \.gguf"):
        open_model(str(tmp_path / "a.bin"))
    with pytest.raises(ModelRejected, match=r"config\.json: cannot be read"):
        open_model(str(tmp_path))


def test_a_sha256_is_checked_for_files_only(tmp_path: Path) -> None:
    with pytest.raises(ModelRejected, match="checked for files, not for folders"):
        open_model(str(folder(tmp_path, HF_CONFIG)), sha256="00" * 32)


def test_weights_of_more_layers_than_the_configuration_says_are_refused(tmp_path: Path) -> None:
    beyond = {"model.layers.1.input_layernorm.weight": {"dtype": "F32", "shape": [64]}}
    header = json.dumps({name: one | {"data_offsets": [0, 256]} for name, one in beyond.items()})
    path = folder(tmp_path, HF_CONFIG) / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(256))
    with pytest.raises(
        ModelRejected, match=r"model\.layers\.1\..*, but its configuration says 1 layers"
    ):
        open_model(str(tmp_path))


def test_a_configuration_alone_is_read(tmp_path: Path, model: Path) -> None:
    (folder(tmp_path, HF_CONFIG) / "model.safetensors").unlink()
    assert read_config(str(tmp_path)).hidden == 64
    assert read_config(str(model)) == open_model(str(model)).weights.config
