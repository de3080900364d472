"""Weights are checked and put in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from headrace_engine.errors import ModelRejected
from headrace_engine.model.layers import Matrix
from headrace_engine.model.loader.formats import as_float32
from headrace_engine.model.opening import open_model
from support import gguf_files


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors())


def test_rows_of_q_and_k_are_put_straight_and_v_is_left(model: Path) -> None:
    stored = gguf_files.tensors()
    layer = open_model(str(model)).weights.layers[1]
    query, key, value = (as_float32(part) for part in layer.qkv.parts)
    pairs = stored["blk.1.attn_q.weight"].reshape(4, 8, 2, 64)
    assert np.array_equal(query.reshape(4, 2, 8, 64), pairs.swapaxes(1, 2))
    assert np.array_equal(key[8], stored["blk.1.attn_k.weight"][1])
    assert np.array_equal(value, stored["blk.1.attn_v.weight"])


def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = gguf_files.tensors()
    weights["blk.0.attn_v.weight"] = np.zeros((32, 96), np.float32)
    path = gguf_files.write(tmp_path / "s.gguf", weights)
    with pytest.raises(
        ModelRejected, match=r"attn_v\.weight has shape \[32, 96\], expected \[32, 64\]"
    ):
        open_model(str(path))


def test_a_matrix_is_its_parts_one_below_the_other(model: Path) -> None:
    qkv = open_model(str(model)).weights.layers[0].qkv
    assert (qkv.outputs, qkv.inputs) == (64 + 32 + 32, 64)
    rows = [as_float32(part) for part in qkv.parts]
    assert np.array_equal(qkv.as_float32(), np.concatenate(rows))
    assert Matrix(qkv.parts[:1]).stored_bytes == 64 * 64 * 4
