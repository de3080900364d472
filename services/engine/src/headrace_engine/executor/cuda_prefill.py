"""Captured steps of prompts: neither a first token nor the device waits for hundreds of launches.

Owner    executor thread
Writes   the tiles that captured steps read; the decoder's scratch
Never    captures after ``capture``; runs more tiles than it has room for
Rules    executor.nothing-allocated-after-start
Next     headrace_engine.model.cuda_decoder

What is captured is the decoder's layers for one count of tokens, with room for the tiles of a few
rows. What depends on the rows stays outside: prepare, the output layer, the choice of tokens.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from headrace_engine.model.cuda_decoder import PREFILL_SIZES, CudaDecoder, MixedBatch

_SIZE_STEP: Final = 256
"""Tokens from one size to the next, above the small ones."""
_ROWS: Final = 16
"""Rows for whose last tiles, which are not full, there is room."""


class PrefillGraphs:
    """One graph for each size that a batch may reach."""

    def __init__(self, decoder: CudaDecoder, *, tile: int, tokens: int, rows: int) -> None:
        """``tile`` is the tokens of a query tile, ``tokens`` and ``rows`` the most of a batch."""
        self._decoder = decoder
        self._tile = tile
        self._rows = min(rows, _ROWS)
        large = range(PREFILL_SIZES[-1] + _SIZE_STEP, tokens + 1, _SIZE_STEP)
        self.sizes = tuple(size for size in (*PREFILL_SIZES, *large) if size <= tokens)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        device = decoder.columns.tokens.device
        room = max(map(self.room, self.sizes), default=0)
        self._tiles = torch.zeros(room, 2, dtype=torch.int32, device=device)

    def size(self, tokens: int) -> int | None:
        """The size at which a step of ``tokens`` tokens runs, if one is large enough."""
        return next((size for size in self.sizes if size >= tokens), None)

    def room(self, size: int) -> int:
        """Tiles for which a step of ``size`` tokens has room."""
        return -(-size // self._tile) + self._rows

    def capture(self, stream: torch.cuda.Stream, pool: torch.cuda._POOL_HANDLE) -> None:  # pyright: ignore[reportPrivateUsage]
        """Captures every size. Kernels were compiled and cuBLAS was warmed before."""
        for size in reversed(self.sizes):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                self._run(size)
            self.graphs[size] = graph

    def run(self, size: int, tiles: Tensor) -> Tensor:
        """Runs ``size`` tokens; ``tiles`` are ``room(size)`` of them. As ``CudaDecoder.run``."""
        self._tiles[: len(tiles)].copy_(tiles)
        graph = self.graphs.get(size)
        if graph is None:  # nothing is captured yet, or ever without a device
            return self._run(size)
        graph.replay()
        return self._decoder.normed(size)

    def _run(self, size: int) -> Tensor:
        tiles = self._tiles[: self.room(size)]
        return self._decoder.run(size, MixedBatch(singles=None, tiles=tiles, fresh=()))
