"""Bytes that pass through a few small buffers arrive in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from headrace_engine.errors import ModelRejected
from headrace_engine.model.loader.formats import Format, RawTensor
from headrace_engine.model.pinned_stream import PinnedStream

pytestmark = pytest.mark.torch
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def stored(file: Path, rows: int, count: int) -> list[RawTensor]:
    """Tensors of a file, of five numbers a row, one after the other behind a header."""
    rng = np.random.default_rng(rows)
    content = rng.integers(0, 256, (count, rows, 10), np.uint8)
    file.write_bytes(b"header." + content.tobytes())
    mapped = np.memmap(file, np.uint8, "r", offset=7, shape=content.shape)
    return [
        RawTensor("name", file, Format.F16, (rows, 5), data, 7 + index * data.nbytes)
        for index, data in enumerate(mapped)
    ]


def sent(stream: PinnedStream, raw: RawTensor) -> torch.Tensor:
    """Where ``raw`` arrives."""
    target = torch.zeros(*raw.shape, dtype=torch.float16, device=DEVICE)
    stream.send(raw, target)
    return target


@pytest.mark.parametrize("rows", [1, 16, 50])
def test_every_byte_arrives_where_it_belongs(tmp_path: Path, rows: int) -> None:
    stream = PinnedStream(DEVICE, piece=64, pieces=2, threads=3)
    first, second, third = stored(tmp_path / "weights", rows, 3)
    # One that was put in another order on the way lies in memory alone.
    turned = RawTensor("turned", Path("nowhere"), Format.F16, second.shape, second.data[::-1])
    raws = [first, turned, third]
    targets = [sent(stream, raw) for raw in raws]
    stream.close()
    for raw, target in zip(raws, targets, strict=True):
        arrived = target.cpu().view(torch.uint8).numpy()
        np.testing.assert_array_equal(arrived.reshape(rows, 10), raw.data)


def test_a_file_that_was_changed_meanwhile_is_told_by_name(tmp_path: Path) -> None:
    stream = PinnedStream(DEVICE, piece=64, pieces=2, threads=3)
    file = tmp_path / "weights"
    first, second = stored(file, 16, 2)
    sent(stream, first)
    with file.open("r+b") as writer:
        writer.truncate(200)
    with pytest.raises(ModelRejected, match="weights: tensor name is truncated"):
        sent(stream, second)
    stream.close()
    file.unlink()
    later = PinnedStream(DEVICE, piece=64, pieces=2, threads=3)
    with pytest.raises(ModelRejected, match="weights: cannot be read: No such file"):
        sent(later, second)
    later.close()


def test_a_file_that_was_replaced_meanwhile_is_not_taken_for_the_first(tmp_path: Path) -> None:
    stream = PinnedStream(DEVICE, piece=64, pieces=2, threads=3)
    (raw,) = stored(tmp_path / "weights", 16, 1)
    stored(tmp_path / "newer", 32, 1)
    (tmp_path / "newer").replace(tmp_path / "weights")
    with pytest.raises(ModelRejected, match="weights: replaced while tensor name was read"):
        sent(stream, raw)
    stream.close()
