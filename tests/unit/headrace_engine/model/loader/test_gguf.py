"""Tensors out of GGUF files, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Quantization
from headrace_engine.errors import ModelRejected
from headrace_engine.model.opening import open_model
from support import gguf_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors())


def test_a_different_weight_gives_a_different_digest(tmp_path: Path) -> None:
    weights = gguf_files.tensors()
    first = open_model(str(gguf_files.write(tmp_path / "a.gguf", weights))).digest
    again = open_model(str(gguf_files.write(tmp_path / "b.gguf", weights))).digest
    weights["blk.1.ffn_down.weight"][3, 3] += 1
    other = open_model(str(gguf_files.write(tmp_path / "c.gguf", weights))).digest
    assert first == again
    assert first != other


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


def test_an_unknown_quantization_is_named(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "q.gguf", gguf_files.tensors(), quantization=Quantization.Q5_0
    )
    with pytest.raises(ModelRejected, match=r"tensor \S+ is quantized as Q5_0; read are F32"):
        open_model(str(path))
