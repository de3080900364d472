"""Rows: what passes gave, as columns, and how the rows of several passes become one row each.

Owner    io thread; frozen, so anybody may read
Writes   nothing
Never    makes an object per token
Rules    outputs.flat
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from headrace_contracts.limits import MAX_CHOICES
from numpy.typing import NDArray

from headrace_engine.state.outputs import PassOutputs, RowEnd, RowLogprobs, RowStarted
from headrace_engine.state.request import RequestHandle

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]


def row_key(handle: RequestHandle, choice: int) -> int:
    """The name of one choice of one request: grows with the handle, then with the choice."""
    return handle * MAX_CHOICES + choice


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one or more passes.

    Invariants
        len(keys) == len(firsts) == len(counts)
        len(tokens) == sum(counts)
        the tokens of a key are consecutive: rows of one key come in the order of their firsts
    """

    pass_id: int
    """Newest pass."""
    keys: Int64
    """int64[rows]: ``row_key``."""
    firsts: Int32
    """int32[rows]: index of the row's first token among its choice's generated tokens."""
    counts: Int32
    """int32[rows]."""
    tokens: Int32
    """int32[sum(counts)]."""
    ends: list[tuple[int, RowEnd]] = field(default_factory=list[tuple[int, RowEnd]])
    """(row, end)."""
    starts: list[tuple[int, RowStarted]] = field(default_factory=list[tuple[int, RowStarted]])
    logprobs: list[tuple[int, RowLogprobs]] = field(default_factory=list[tuple[int, RowLogprobs]])
    """(row, logprobs), in the order of the row's tokens."""


def from_outputs(outputs: PassOutputs) -> Rows:
    """The same rows, named by key."""
    return Rows(
        pass_id=outputs.pass_id,
        keys=outputs.handles * MAX_CHOICES + outputs.choices,
        firsts=outputs.firsts,
        counts=outputs.counts,
        tokens=outputs.tokens,
        ends=[(end.row, end) for end in outputs.ends],
        starts=[(start.row, start) for start in outputs.starts],
        logprobs=[(item.row, item) for item in outputs.logprobs],
    )


def spans(offsets: NDArray[np.integer], counts: NDArray[np.integer]) -> Int64:
    """Indices ``offsets[i] .. offsets[i] + counts[i]`` of every i, one after the other."""
    total = int(counts.sum())
    ends = np.cumsum(counts, dtype=np.int64)
    shift = offsets.astype(np.int64) - (ends - counts)
    return np.repeat(shift, counts) + np.arange(total, dtype=np.int64)


def merge(chunks: Sequence[Rows]) -> Rows:
    """One row for each key of ``chunks``, which are in the order of their passes."""
    if len(chunks) == 1:
        return chunks[0]
    keys = np.concatenate([chunk.keys for chunk in chunks])
    counts = np.concatenate([chunk.counts for chunk in chunks])
    tokens = np.concatenate([chunk.tokens for chunk in chunks])
    firsts = np.concatenate([chunk.firsts for chunk in chunks])

    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    opens = np.empty(len(keys), dtype=np.bool_)
    opens[:1] = True
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=opens[1:])
    heads = np.flatnonzero(opens)
    target = np.empty(len(keys), dtype=np.int64)
    target[order] = np.cumsum(opens) - 1

    offsets = np.cumsum(counts, dtype=np.int64) - counts
    ordered = counts[order]
    ends: list[tuple[int, RowEnd]] = []
    starts: list[tuple[int, RowStarted]] = []
    logprobs: list[tuple[int, RowLogprobs]] = []
    base = 0
    for chunk in chunks:
        ends += [(int(target[base + row]), end) for row, end in chunk.ends]
        starts += [(int(target[base + row]), start) for row, start in chunk.starts]
        logprobs += [(int(target[base + row]), item) for row, item in chunk.logprobs]
        base += len(chunk.keys)
    return Rows(
        pass_id=chunks[-1].pass_id,
        keys=sorted_keys[heads],
        firsts=firsts[order][heads],
        counts=np.add.reduceat(ordered, heads).astype(np.int32) if len(heads) else ordered,
        tokens=tokens[spans(offsets[order], ordered)],
        ends=ends,
        starts=starts,
        logprobs=logprobs,
    )


def select(rows: Rows, mask: NDArray[np.bool_]) -> Rows:
    """The rows where ``mask[row]`` is true."""
    if bool(mask.all()):
        return rows
    kept = np.flatnonzero(mask)
    place = np.cumsum(mask) - 1
    offsets = np.cumsum(rows.counts, dtype=np.int64) - rows.counts
    return Rows(
        pass_id=rows.pass_id,
        keys=rows.keys[kept],
        firsts=rows.firsts[kept],
        counts=rows.counts[kept],
        tokens=rows.tokens[spans(offsets[kept], rows.counts[kept])],
        ends=[(int(place[row]), end) for row, end in rows.ends if mask[row]],
        starts=[(int(place[row]), start) for row, start in rows.starts if mask[row]],
        logprobs=[(int(place[row]), item) for row, item in rows.logprobs if mask[row]],
    )
