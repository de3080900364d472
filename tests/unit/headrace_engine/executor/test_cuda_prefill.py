"""Which kind of captured step one with prompts runs as, and what of it is only room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_prefill import Captured, PrefillGraphs
from headrace_engine.model.cuda_decoder import LEAST_SINGLES, CudaDecoder, MixedBatch

pytestmark = pytest.mark.torch
IDLE = 4711
NONE = np.zeros(0, np.int32)


class Recorder:
    """Stands for a decoder: notes what it is asked to run."""

    idle_token = IDLE

    def __init__(self) -> None:
        self.columns = SimpleNamespace(
            tokens=torch.zeros(1, device=DEVICE), targets=torch.zeros(IDLE, device=DEVICE)
        )
        self.ran: list[tuple[int, list[int] | None, list[list[int]]]] = []

    def run(self, count: int, batch: MixedBatch, *, layers: int | None = None) -> torch.Tensor:
        assert batch.tiles is not None
        singles, tiles = cast("Any", batch.singles), cast("Any", batch.tiles)
        self.ran.append((count, None if singles is None else singles.tolist(), tiles.tolist()))
        return torch.zeros(count, 1)


def graphs(decoder: Recorder, tokens: int, rows: int = 4) -> PrefillGraphs:
    return PrefillGraphs(cast("CudaDecoder", decoder), tile=32, tokens=tokens, rows=rows)


def test_a_step_runs_at_the_smallest_size_that_holds_it() -> None:
    made = graphs(Recorder(), 2100)
    found = [made.fit(n, 0, 1) for n in (1, 16, 17, 1000)]
    assert found == [Captured(size, singles=False) for size in (16, 16, 32, 1024)]
    found = [made.fit(n, 3, 0) for n in (16, 17, 1024)]
    assert found == [Captured(size, singles=True) for size in (16, 32, 1024)]
    # Large ones always have room for rows of one token.
    found = [made.fit(n, singles, 1) for n in (1025, 1281) for singles in (0, 3)]
    assert found == [Captured(size, singles=True) for size in (1280, 1280, 1536, 1536)]
    assert made.kinds[-1].size == 2048
    assert made.fit(2049, 0, 1) is None
    assert graphs(Recorder(), 8).fit(1, 0, 1) is None


def test_there_is_room_for_the_last_tile_of_some_rows() -> None:
    made = graphs(Recorder(), 256)
    assert made.room(64) == 2 + 4
    assert made.room(96) == 3 + 4
    many = graphs(Recorder(), 2048, rows=500)
    assert many.room(64) == 2 + 16
    assert many.room(2048) == 64 + 32
    assert many.fit(64, 0, 18) == Captured(64, singles=False)
    assert many.fit(64, 0, 19) is None


def test_tiles_are_put_where_a_captured_step_reads_them() -> None:
    decoder = Recorder()
    made = graphs(decoder, 64)
    kind = Captured(32, singles=False)
    inputs = made.inputs(kind, NONE, np.array([[5, 7]], np.int32))
    made.run(kind, torch.as_tensor(inputs, device=DEVICE))
    assert decoder.ran == [(32, None, [[5, 7]] + [[0, 0]] * 4)]


def test_single_tokens_are_filled_up_with_idle_ones() -> None:
    decoder = Recorder()
    made = graphs(decoder, 64)
    kind = Captured(16, singles=True)
    # What an earlier step left is overwritten.
    for singles in ([9, 8, 7, 6], [3, 2]):
        inputs = made.inputs(kind, np.array(singles, np.int32), np.array([[5, 7]], np.int32))
        assert len(inputs) <= made.words
        made.run(kind, torch.as_tensor(inputs, device=DEVICE))
    idle = [IDLE] * (LEAST_SINGLES - 2)
    assert decoder.ran[1] == (16, [3, 2, *idle], [[5, 7]] + [[0, 0]] * 4)


@pytest.mark.parametrize("rows", [1, 40])
def test_every_kind_is_warmed_with_nothing_to_do(rows: int) -> None:
    decoder = Recorder()
    made = graphs(decoder, 1300, rows)
    # What an earlier step left attends to nothing either, and writes no KV.
    kind = Captured(1280, singles=True)
    inputs = made.inputs(kind, np.array([9], np.int32), np.array([[5, 7]], np.int32))
    made.run(kind, torch.as_tensor(inputs, device=DEVICE))
    decoder.ran.clear()
    made.warm()
    singles = [IDLE] * max(LEAST_SINGLES, rows)
    assert decoder.ran == [
        (kind.size, singles if kind.singles else None, [[0, 0]] * made.room(kind.size))
        for kind in made.kinds
    ]
    assert decoder.columns.targets.unique().tolist() == [-1]
