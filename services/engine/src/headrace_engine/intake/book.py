"""RowBook: where each choice's rows go, and which of its tokens the resume log lacks. Columns.

Owner    io thread
Writes   RowBook
Never    awaits; makes an object per token
Rules    outputs.flat, log.append-in-order
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headrace_engine.intake.columns import Int32, Int64, spans
from headrace_engine.intake.held import Held

_FIRST_ROWS = 64
_WIDTH = 64
"""Unlogged tokens of a row that fit before the buffer grows."""
_GATEWAYS = 256
"""Gateway names remembered before those without rows are forgotten."""
NEVER = float("inf")


class RowBook:
    """One row of columns for each choice of each held request.

    Invariants
        keys are sorted (handles only grow), each with one row
        logged[row] <= ends[row]
        unlogged[row, : ends - logged] are the choice's tokens logged .. ends
    """

    def __init__(self) -> None:
        self._keys: Int64 = np.empty(0, dtype=np.int64)
        self._rows: Int64 = np.empty(0, dtype=np.int64)
        self._free: list[int] = list(range(_FIRST_ROWS - 1, -1, -1))
        self._owners: list[Held | None] = [None] * _FIRST_ROWS
        self.choices: Int32 = np.zeros(_FIRST_ROWS, dtype=np.int32)
        self.gateways: Int32 = np.zeros(_FIRST_ROWS, dtype=np.int32)
        """Index into ``gateway_names``."""
        self.slots: Int64 = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.attempts: Int64 = np.zeros(_FIRST_ROWS, dtype=np.int64)
        self.ends: Int64 = np.zeros(_FIRST_ROWS, dtype=np.int64)
        """Generated tokens that are published."""
        self.logged: Int64 = np.zeros(_FIRST_ROWS, dtype=np.int64)
        """Generated tokens that the resume log holds."""
        self.due: NDArray[np.float64] = np.full(_FIRST_ROWS, NEVER)
        """Monotonic seconds by which the row must be logged."""
        self._unlogged: Int32 = np.zeros((_FIRST_ROWS, _WIDTH), dtype=np.int32)
        self.gateway_names: list[str] = []
        self._gateway_index: dict[str, int] = {}

    def __len__(self) -> int:
        """Rows in use."""
        return len(self._keys)

    def add(self, held: Held, keys: Sequence[int], lengths: Sequence[int]) -> None:
        """Opens a row for each choice; ``lengths`` tokens of it are published and logged already."""
        while len(self._free) < len(keys):
            self._grow()
        rows = [self._free.pop() for _ in keys]
        for choice, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            self._owners[row] = held
            self.choices[row] = choice
            self.attempts[row] = held.attempt
            self.ends[row] = self.logged[row] = length
            self.due[row] = NEVER
        self._keys = np.append(self._keys, np.asarray(keys, dtype=np.int64))
        self._rows = np.append(self._rows, np.asarray(rows, dtype=np.int64))
        assert bool(np.all(self._keys[1:] > self._keys[:-1]))
        self.route(keys, held.gateway, held.slot)

    def route(self, keys: Sequence[int], gateway: str, slot: int) -> None:
        """Sends the rows of ``keys`` to ``gateway``, at ``slot`` and those after it."""
        rows = self.find(np.asarray(keys, dtype=np.int64))
        self.gateways[rows] = self._gateway(gateway)
        self.slots[rows] = slot + np.arange(len(rows))

    def remove(self, keys: Sequence[int]) -> None:
        """Closes rows; what they still had to log is forgotten."""
        gone = np.isin(self._keys, np.asarray(keys, dtype=np.int64), assume_unique=True)
        for row in self._rows[gone].tolist():
            self._owners[row] = None
            self.due[row] = NEVER
            self.ends[row] = self.logged[row] = 0
            self._free.append(row)
        self._keys = self._keys[~gone]
        self._rows = self._rows[~gone]

    def find(self, keys: Int64) -> Int64:
        """int64[len(keys)]: row of each key, -1 for one that is not (or no longer) held."""
        if not len(self._keys):
            return np.full(len(keys), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[places] == keys, self._rows[places], -1)

    def owner(self, row: int) -> Held:
        """Whose row it is."""
        held = self._owners[row]
        assert held is not None
        return held

    def published(self, rows: Int64, firsts: Int32, counts: Int32, tokens: Int32) -> None:
        """Notes tokens that a frame carried, for the log. Those it had before are written again."""
        columns = firsts - self.logged[rows]
        ends = columns + counts
        needed = int(ends.max(initial=0))
        if needed > self._unlogged.shape[1]:
            self._widen(needed)
        # A row may be told again what the log holds already (a take-over's first frame).
        places = spans(columns, counts)
        kept = places >= 0
        self._unlogged[np.repeat(rows, counts)[kept], places[kept]] = tokens[kept]
        self.ends[rows] = np.maximum(self.ends[rows], firsts + counts)

    def unlogged(self, row: int) -> Int32:
        """int32[ends - logged]: published tokens that the log lacks. A view."""
        return self._unlogged[row, : int(self.ends[row] - self.logged[row])]

    def appended(self, row: int, length: int) -> None:
        """The log now holds ``length`` generated tokens of the row."""
        length = min(length, int(self.ends[row]))
        step = length - int(self.logged[row])
        if step <= 0:
            return
        rest = int(self.ends[row]) - length
        self._unlogged[row, :rest] = self._unlogged[row, step : step + rest].copy()
        self.logged[row] = length

    def shrink(self) -> None:
        """Gives back what a long outage made the buffer grow to, once nothing needs it."""
        if self._unlogged.shape[1] > _WIDTH and int((self.ends - self.logged).max()) <= _WIDTH:
            self._unlogged = self._unlogged[:, :_WIDTH].copy()

    @property
    def buffer_bytes(self) -> int:
        """Memory behind the unlogged tokens."""
        return self._unlogged.nbytes

    def _gateway(self, name: str) -> int:
        if name not in self._gateway_index and len(self.gateway_names) >= _GATEWAYS:
            self._forget_gateways()
        index = self._gateway_index.get(name)
        if index is None:
            index = self._gateway_index[name] = len(self.gateway_names)
            self.gateway_names.append(name)
        return index

    def _forget_gateways(self) -> None:
        """Drops the names that no row uses: gateways come and go for as long as we live."""
        used = np.unique(self.gateways[self._rows])
        self.gateway_names = [self.gateway_names[index] for index in used.tolist()]
        self._gateway_index = {name: index for index, name in enumerate(self.gateway_names)}
        self.gateways[self._rows] = np.searchsorted(used, self.gateways[self._rows])

    def _widen(self, columns: int) -> None:
        width = 1 << (columns - 1).bit_length()
        grown = np.zeros((len(self.ends), width), dtype=np.int32)
        grown[:, : self._unlogged.shape[1]] = self._unlogged
        self._unlogged = grown

    def _grow(self) -> None:
        size = len(self.ends)
        self._free += range(2 * size - 1, size - 1, -1)
        self._owners += [None] * size
        self.choices = np.append(self.choices, np.zeros(size, dtype=np.int32))
        self.gateways = np.append(self.gateways, np.zeros(size, dtype=np.int32))
        self.slots = np.append(self.slots, np.zeros(size, dtype=np.int64))
        self.attempts = np.append(self.attempts, np.zeros(size, dtype=np.int64))
        self.ends = np.append(self.ends, np.zeros(size, dtype=np.int64))
        self.logged = np.append(self.logged, np.zeros(size, dtype=np.int64))
        self.due = np.append(self.due, np.full(size, NEVER))
        self._unlogged = np.concatenate([self._unlogged, np.zeros_like(self._unlogged)])
