"""Captured steps that have prompts: neither a first token nor the device waits for hundreds of launches.

Owner    executor thread
Writes   the tiles and single tokens of a message; the decoder's columns and scratch
Never    captures after ``capture``; runs more tiles or single tokens than it has room for
Rules    executor.nothing-allocated-after-start
Next     headrace_engine.model.cuda_decoder

What is captured is prepare and the decoder's layers for one count of tokens, with room for the tiles of
some rows, and for a token of every row that decodes. What depends on the rows stays outside: the output
layer, the choice of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace_engine.executor.cuda_graphs import captured
from headrace_engine.kernels.gpu.prepare import aligned
from headrace_engine.model.cuda_decoder import (
    LEAST_SINGLES,
    PREFILL_SIZES,
    CudaDecoder,
    MixedBatch,
)

STEP_TOKENS: Final = 256
"""Tokens from one size to the next, above the small ones."""
_ROWS: Final = 16
"""Rows for whose last tiles, which are not full, there is room, at least."""
_ROW_TOKENS: Final = 64
"""Tokens of a step for which there is room for one more such row."""


@dataclass(frozen=True, slots=True, order=True)
class Captured:
    """One kind of step."""

    size: int
    """Tokens."""
    singles: bool
    """Whether rows of a single token attend too. Large steps always have room for them: it costs
    less than a hundredth there."""


class Bounds(NamedTuple):
    """The most of each that a step's message has."""

    rows: int
    longest: int
    """Tokens of a row, or of those that only fill the step up."""
    updates: int
    """Of the block table."""


class PrefillGraphs:
    """One graph for each size that a batch may reach; of small sizes one more with single tokens."""

    def __init__(self, decoder: CudaDecoder, *, tile: int, tokens: int, rows: int) -> None:
        """``tile`` is the tokens of a query tile, ``tokens`` and ``rows`` the most of a batch."""
        self._decoder = decoder
        self._tile = tile
        self._rows = rows
        self._singles = max(aligned(rows), LEAST_SINGLES)
        small = [size for size in PREFILL_SIZES if size <= tokens]
        large = range(PREFILL_SIZES[-1] + STEP_TOKENS, tokens + 1, STEP_TOKENS)
        self.kinds = (
            *(Captured(size, singles) for size in small for singles in (False, True)),
            *(Captured(size, True) for size in large),
        )
        self.graphs: dict[Captured, torch.cuda.CUDAGraph] = {}
        room = max((self.room(kind.size) for kind in self.kinds), default=0)
        self.words = self._singles + 2 * room
        """The most that ``write`` writes."""

    def place(self, inputs: Tensor, updates: int, prepare: Callable[[int, Bounds], None]) -> None:
        """Says where on the device a step's message has what ``write`` wrote, how many updates of the
        table it may have, and who fills in a step of some tokens from it. Before anything runs."""
        self._inputs = inputs
        self._updates = updates
        self._prepare = prepare

    def room(self, size: int) -> int:
        """Tiles for which a step of ``size`` tokens has room."""
        return -(-size // self._tile) + min(self._rows, max(_ROWS, size // _ROW_TOKENS))

    def fit(self, tokens: int, singles: int, tiles: int) -> Captured | None:
        """The kind of step that has room for so many tokens, of which some are their rows' only one."""
        for kind in self.kinds:
            if kind.size >= tokens and (kind.singles or not singles):
                return kind if tiles <= self.room(kind.size) else None
        return None

    def write(
        self,
        words: NDArray[np.int32],
        kind: Captured,
        singles: NDArray[np.int32],
        tiles: NDArray[np.int32],
    ) -> None:
        """Writes what ``run`` reads: single tokens and tiles, filled up with such as do nothing."""
        begin = self._singles
        words[:begin] = self._decoder.idle_token
        words[: len(singles)] = singles
        words[begin : begin + 2 * self.room(kind.size)] = 0
        words[begin : begin + tiles.size] = tiles.reshape(-1)

    def warm(self) -> None:
        """Runs every kind once with nothing to attend: while a graph is captured nothing may be
        compiled or loaded. One layer does, as all of them are of the same shapes."""
        self._inputs.zero_()
        self._inputs[: self._singles].fill_(self._decoder.idle_token)
        for kind in self.kinds:
            self._run(kind, layers=1)

    def capture(self, pool: torch.cuda._POOL_HANDLE) -> None:  # pyright: ignore[reportPrivateUsage]
        """Captures every kind, after ``warm``."""
        for kind in reversed(self.kinds):
            with captured(pool) as graph:
                self._run(kind)
            self.graphs[kind] = graph

    def run(self, kind: Captured, bounds: Bounds) -> Tensor:
        """Runs the step whose message is on the device. As ``CudaDecoder.run``."""
        graph = self.graphs.get(kind)
        if graph is None:  # nothing is captured yet, or ever without a device
            return self._run(kind, bounds)
        graph.replay()
        return self._decoder.normed(kind.size)

    def _run(
        self, kind: Captured, bounds: Bounds | None = None, *, layers: int | None = None
    ) -> Tensor:
        size, begin = kind.size, self._singles
        self._prepare(size, bounds or Bounds(min(self._rows, size), size, self._updates))
        tiles = self._inputs[begin : begin + 2 * self.room(size)].view(-1, 2)
        singles = self._inputs[:begin] if kind.singles else None
        batch = MixedBatch(singles=singles, tiles=tiles, fresh=())
        return self._decoder.run(size, batch, layers=layers)
