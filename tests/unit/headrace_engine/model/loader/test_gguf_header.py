"""GGUF headers, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.gguf_header import read_gguf_header
from support import gguf_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors())


@pytest.mark.parametrize("cut", [10, 200, 900])
def test_a_file_cut_in_its_header_is_refused(cut: int, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:cut])
    with pytest.raises(ModelRejected, match=r"tiny\.gguf: .*(truncated|too few)"):
        read_gguf_header(model)


def test_metadata_lists_are_read(model: Path) -> None:
    assert read_gguf_header(model).metadata["some.words"] == ["a", "b", "é"]


def test_a_header_tells_where_each_tensor_lies(model: Path) -> None:
    header = read_gguf_header(model)
    stored = gguf_files.tensors()
    assert set(header.tensors) == set(stored)
    assert header.file_bytes == model.stat().st_size
    norm = header.tensors["output_norm.weight"]
    data = model.read_bytes()[norm.offset : norm.offset + 4 * norm.shape[0]]
    assert np.array_equal(np.frombuffer(data, np.float32), stored["output_norm.weight"])


def test_other_versions_are_refused_by_number(model: Path) -> None:
    data = bytearray(model.read_bytes())
    data[4] = 9
    model.write_bytes(data)
    with pytest.raises(ModelRejected, match="GGUF version 9; versions 2 and 3 are read"):
        read_gguf_header(model)
