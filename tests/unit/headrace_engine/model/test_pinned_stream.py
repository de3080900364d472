"""Bytes that pass through a few small buffers arrive in order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from headrace_engine.model.pinned_stream import PinnedStream

pytestmark = pytest.mark.torch
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("rows", [1, 16, 50])
def test_every_byte_arrives_where_it_belongs(rows: int) -> None:
    stream = PinnedStream(DEVICE, piece=64, pieces=2, threads=3)
    rng = np.random.default_rng(rows)
    sent = [rng.integers(0, 256, (rows, 10), np.uint8) for _ in range(3)]
    targets = [torch.zeros(rows, 5, dtype=torch.float16, device=DEVICE) for _ in sent]
    for data, target in zip(sent, targets, strict=True):
        stream.send(data, target)
    stream.close()
    for data, target in zip(sent, targets, strict=True):
        arrived = target.cpu().view(torch.uint8).numpy()
        np.testing.assert_array_equal(arrived.reshape(rows, 10), data)
