"""Which size a step of prompts runs at, and what of it is only room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_prefill import PrefillGraphs
from headrace_engine.model.cuda_decoder import CudaDecoder, MixedBatch

pytestmark = pytest.mark.torch


class Recorder:
    """Stands for a decoder: notes what it is asked to run."""

    def __init__(self) -> None:
        self.columns = SimpleNamespace(tokens=torch.zeros(1, device=DEVICE))
        self.ran: list[tuple[int, list[list[int]]]] = []

    def run(self, count: int, batch: MixedBatch) -> torch.Tensor:
        assert batch.tiles is not None
        self.ran.append((count, cast("Any", batch.tiles).tolist()))
        return torch.zeros(count, 1)


def graphs(decoder: Recorder, tokens: int, rows: int = 4) -> PrefillGraphs:
    return PrefillGraphs(cast("CudaDecoder", decoder), tile=32, tokens=tokens, rows=rows)


def test_a_step_runs_at_the_smallest_size_that_holds_it() -> None:
    made = graphs(Recorder(), 2100)
    assert [made.size(n) for n in (1, 16, 17, 1000, 1025, 1281)] == [16, 16, 32, 1024, 1280, 1536]
    assert made.sizes[-1] == 2048
    assert made.size(2049) is None
    assert graphs(Recorder(), 8).size(1) is None


def test_there_is_room_for_the_last_tile_of_some_rows() -> None:
    made = graphs(Recorder(), 256)
    assert made.room(64) == 2 + 4
    assert made.room(96) == 3 + 4
    assert graphs(Recorder(), 256, rows=500).room(64) == 2 + 16


def test_tiles_are_put_where_a_captured_step_reads_them() -> None:
    decoder = Recorder()
    made = graphs(decoder, 64)
    tiles = torch.zeros(made.room(32), 2, dtype=torch.int32, device=DEVICE)
    tiles[0] = torch.tensor([5, 7])
    made.run(32, tiles)
    assert decoder.ran == [(32, [[5, 7]] + [[0, 0]] * 4)]
