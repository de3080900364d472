"""The torch twin by itself; test_native_decoder.py holds both against transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from headrace_engine.model.decoder import CacheLayout, DecoderLimits, ForwardInputs
from headrace_engine.model.opening import open_model
from headrace_engine.model.torch_decoder import TorchDecoder
from support import gguf_files

pytestmark = pytest.mark.torch


def inputs(tokens: list[int], begin: int, blocks: list[int], store_from: int = 0) -> ForwardInputs:
    return ForwardInputs(
        tokens=np.array(tokens, np.int32),
        offsets=np.array([0, len(tokens)], np.int32),
        begins=np.array([begin], np.int32),
        blocks=np.array(blocks, np.int64),
        block_starts=np.zeros(1, np.int32),
        store_from=np.array([store_from], np.int32),
        outputs=np.array([len(tokens) - 1], np.int32),
    )


def test_a_prompt_in_pieces_over_scattered_blocks_gives_the_logits_of_the_whole(
    tmp_path: Path,
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors())
    opened = open_model(str(path))
    decoder = TorchDecoder(opened.weights, "float32")
    layout = CacheLayout(2, gguf_files.KV_HEADS, gguf_files.HEAD_DIM, 4, "float32")
    size = layout.block_bytes
    region = np.zeros(16 * size, np.uint8)
    decoder.start(DecoderLimits(tokens=32, outputs=4, positions=64), layout, region)
    prompt = list(range(5, 16))
    whole = decoder.run(inputs(prompt, 0, [0, size, 2 * size])).copy()
    scattered = [9 * size, 4 * size, 7 * size]
    decoder.run(inputs(prompt[:5], 0, scattered))
    pieces = decoder.run(inputs(prompt[5:], 5, scattered))
    assert np.allclose(whole, pieces, atol=1e-5)
    before = region.copy()
    decoder.run(inputs(prompt[5:], 5, scattered, store_from=11))
    assert np.array_equal(before, region)
    decoder.close()
