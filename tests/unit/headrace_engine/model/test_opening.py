"""From a path to a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.opening import open_model
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
