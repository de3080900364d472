"""Which kind of captured step one with prompts runs as, and what of it is only room."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from support.gpu import DEVICE

# Triton is imported below, and support.gpu chooses its interpreter before.
pytest.importorskip("triton")

import torch
from headrace_engine.executor.cuda_prefill import Bounds, Captured, PrefillGraphs
from headrace_engine.model.cuda_decoder import LEAST_SINGLES, CudaDecoder, MixedBatch

pytestmark = pytest.mark.torch
IDLE = 4711
UPDATES = 99
BOUNDS = Bounds(rows=2, longest=7, updates=1)


class Recorder:
    """Stands for a decoder, and for who prepares its steps: notes what it is asked to run."""

    idle_token = IDLE

    def __init__(self) -> None:
        self.prepared: list[tuple[int, Bounds]] = []
        self.ran: list[tuple[int, list[int] | None, list[list[int]]]] = []

    def prepare(self, size: int, bounds: Bounds) -> None:
        self.prepared.append((size, bounds))

    def run(self, count: int, batch: MixedBatch, *, layers: int | None = None) -> torch.Tensor:
        assert batch.tiles is not None
        assert self.prepared[-1][0] == count, "a step runs on what was prepared for it"
        singles, tiles = cast("Any", batch.singles), cast("Any", batch.tiles)
        self.ran.append((count, None if singles is None else singles.tolist(), tiles.tolist()))
        return torch.zeros(count, 1)


class Steps:
    """Captured steps, and the message that they read."""

    def __init__(self, decoder: Recorder, tokens: int, rows: int = 4) -> None:
        self.made = PrefillGraphs(cast("CudaDecoder", decoder), tile=32, tokens=tokens, rows=rows)
        self.words = np.zeros(self.made.words, np.int32)
        self.inputs = torch.zeros(self.made.words, dtype=torch.int32, device=DEVICE)
        self.made.place(self.inputs, UPDATES, decoder.prepare)

    def run(self, kind: Captured, singles: list[int], tiles: list[list[int]]) -> None:
        tokens = np.array(singles, np.int32)
        self.made.write(self.words, kind, tokens, np.array(tiles, np.int32))
        self.inputs.copy_(torch.as_tensor(self.words))
        self.made.run(kind, BOUNDS)


def graphs(decoder: Recorder, tokens: int, rows: int = 4) -> PrefillGraphs:
    return Steps(decoder, tokens, rows).made


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
    Steps(decoder, 64).run(Captured(32, singles=False), [], [[5, 7]])
    assert decoder.ran == [(32, None, [[5, 7]] + [[0, 0]] * 4)]
    assert decoder.prepared == [(32, BOUNDS)]


def test_single_tokens_are_filled_up_with_idle_ones() -> None:
    decoder = Recorder()
    steps = Steps(decoder, 64)
    # What an earlier step left is overwritten.
    for singles in ([9, 8, 7, 6], [3, 2]):
        steps.run(Captured(16, singles=True), singles, [[5, 7]])
    idle = [IDLE] * (LEAST_SINGLES - 2)
    assert decoder.ran[1] == (16, [3, 2, *idle], [[5, 7]] + [[0, 0]] * 4)


@pytest.mark.parametrize("rows", [1, 40])
def test_every_kind_is_warmed_with_nothing_to_do(rows: int) -> None:
    decoder = Recorder()
    steps = Steps(decoder, 1300, rows)
    made = steps.made
    # What an earlier step left attends to nothing either.
    steps.run(Captured(1280, singles=True), [9], [[5, 7]])
    decoder.ran.clear()
    decoder.prepared.clear()
    made.warm()
    singles = [IDLE] * max(LEAST_SINGLES, rows)
    assert decoder.ran == [
        (kind.size, singles if kind.singles else None, [[0, 0]] * made.room(kind.size))
        for kind in made.kinds
    ]
    # As each is captured: for the most that a step of its size may have.
    assert decoder.prepared == [
        (kind.size, Bounds(min(rows, kind.size), kind.size, UPDATES)) for kind in made.kinds
    ]
