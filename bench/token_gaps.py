"""Times between tokens of one stream, as the offline API delivers them to its readers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import numpy as np
from headrace_engine.api_stream import Streams
from headrace_engine.state.outputs import PassOutputs


class TokenGaps:
    """While it is entered, every delivery of every engine in this process is noted."""

    def __init__(self) -> None:
        self._deliver = Streams.deliver
        self._last: dict[int, float] = {}
        self._gaps_s: list[float] = []

    def __enter__(self) -> Self:
        note, deliver = self._note, self._deliver

        def noting(self: Streams, batch: Sequence[PassOutputs]) -> None:
            note(batch)
            deliver(self, batch)

        Streams.deliver = noting
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        Streams.deliver = self._deliver

    def _note(self, batch: Sequence[PassOutputs]) -> None:
        now = time.perf_counter()
        for outputs in batch:
            for handle in outputs.handles[outputs.counts > 0].tolist():
                if handle in self._last:
                    self._gaps_s.append(now - self._last[handle])
                self._last[handle] = now

    def quantiles_ms(self) -> dict[str, float]:
        """Median and 99th percentile of the gaps; 0 where no stream had two tokens."""
        if not self._gaps_s:
            return {"itl_p50_ms": 0.0, "itl_p99_ms": 0.0}
        middle, late = 1e3 * np.quantile(self._gaps_s, [0.5, 0.99])
        return {"itl_p50_ms": float(middle), "itl_p99_ms": float(late)}
