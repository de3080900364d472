"""Stored numbers become float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from gguf import dequantize, quantize
from headrace_engine.model.loader.formats import Format
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


@pytest.mark.parametrize("quantization", list(STORED))
def test_every_stored_format_is_read(quantization: Quantization, tmp_path: Path) -> None:
    stored = gguf_files.tensors()
    path = gguf_files.write(tmp_path / "q.gguf", stored, quantization=quantization)
    down = open_model(str(path)).weights.layers[0].down
    assert down.formats == {Format(quantization.value)}
    exact = dequantize(quantize(stored["blk.0.ffn_down.weight"], quantization), quantization)
    assert np.array_equal(down.as_float32(), exact)
    assert np.abs(down.as_float32() - stored["blk.0.ffn_down.weight"]).max() < STORED[quantization]
