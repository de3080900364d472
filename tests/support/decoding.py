"""Drives an executor by hand-made batches: sequences with blocks of their own, no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from headrace_engine.executor.base import Executor, ExecutorLimits
from headrace_engine.state.batch import BatchData, BatchOutput, SlotStart
from support.batch import slot_sampling


@dataclass
class Run:
    """One row of a batch."""

    slot: int
    begin: int
    tokens: Sequence[int] | None
    """None: the slot's own last token."""
    index: int | None
    """Of the token to sample among the generated ones; None: only prefill."""
    start: SlotStart | None = None
    store_from: int = 0


@dataclass
class Driver:
    """Blocks are taken in an order that is not theirs in memory, so that paging is exercised."""

    executor: Executor
    slots: int = 24
    batch_tokens: int = 1024
    sequence_tokens: int = 512
    block_tokens: int = 16
    pool_blocks: int = 256
    pass_id: int = 0
    tables: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    """Block numbers of each slot."""

    def __post_init__(self) -> None:
        self.block_bytes = self.executor.block_bytes(self.block_tokens)
        self.executor.start(
            ExecutorLimits(
                slots=self.slots,
                batch_tokens=self.batch_tokens,
                sequence_tokens=self.sequence_tokens,
                block_tokens=self.block_tokens,
                region_bytes=self.pool_blocks * self.block_bytes,
                phases=2,
            )
        )
        order = np.random.default_rng(0).permutation(self.pool_blocks)
        self._free: list[int] = order.tolist()

    def start(
        self, slot: int, prompt: Sequence[int], *, choice: int = 0, **sampling: Any
    ) -> SlotStart:
        """A sequence that enters ``slot``."""
        tokens = np.array(prompt, np.int32)
        return SlotStart(slot, tokens, len(tokens), choice, slot_sampling(**sampling))

    def run(self, rows: Sequence[Run], **fields: Any) -> BatchOutput:
        """One pass; rows that generate are put first, in their order."""
        rows = sorted(rows, key=lambda row: row.index is None)
        batch = self.batch(rows, **fields)
        self.executor.submit(batch)
        self.executor.collect(batch)
        assert batch.output is not None
        return batch.output

    def batch(self, rows: Sequence[Run], **fields: Any) -> BatchData:
        tokens: list[int] = []
        lengths: list[int] = []
        changes: list[tuple[int, int, int]] = []
        for row in rows:
            inputs = [0] if row.tokens is None else list(row.tokens)
            tokens += inputs
            lengths.append(len(inputs))
            table = self.tables.setdefault(row.slot, [])
            if row.start is not None:
                changes += [(row.slot, i, block) for i, block in enumerate(table)]
            while len(table) * self.block_tokens < row.begin + len(inputs):
                changes.append((row.slot, len(table), self._free.pop()))
                table.append(changes[-1][2])
        self.pass_id += 1
        names, indices, blocks = zip(*changes, strict=True) if changes else ((), (), ())
        return BatchData(
            pass_id=self.pass_id,
            phase=self.pass_id % 2,
            generating=sum(row.index is not None for row in rows),
            slots=_int32([row.slot for row in rows]),
            begins=_int32([row.begin for row in rows]),
            lengths=_int32(lengths),
            autoregressive=np.array([row.tokens is None for row in rows], np.bool_),
            sample_indices=_int32([row.index for row in rows if row.index is not None]),
            tokens=_int32(tokens),
            token_offsets=_int32([0, *np.cumsum(lengths)]),
            store_from=_int32([row.store_from for row in rows]),
            table_slots=_int32(names),
            table_indices=_int32(indices),
            table_offsets=np.array(blocks, np.int64) * self.block_bytes,
            starts=[row.start for row in rows if row.start is not None],
            **fields,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        *,
        chunk: int | None = None,
        first_slot: int = 0,
        **sampling: Any,
    ) -> list[list[int]]:
        """``count`` tokens for each prompt, all in one batch. ``chunk`` cuts prompts into pieces."""
        slots = range(first_slot, first_slot + len(prompts))
        starts = [
            self.start(s, p, choice=s - first_slot, **sampling)
            for s, p in zip(slots, prompts, strict=True)
        ]
        longest = max(map(len, prompts))
        step = chunk or longest
        out: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        while min(map(len, out)) < count:
            rows: list[Run] = []
            for i, (slot, prompt) in enumerate(zip(slots, prompts, strict=True)):
                if done[i] < len(prompt):
                    piece = prompt[done[i] : done[i] + step]
                    start = starts[i] if done[i] == 0 else None
                    ends = done[i] + len(piece) == len(prompt)
                    rows.append(Run(slot, done[i], piece, 0 if ends else None, start))
                    done[i] += len(piece)
                else:
                    rows.append(Run(slot, len(prompt) + len(out[i]) - 1, None, len(out[i])))
            output = self.run(rows)
            generating = [row.slot for row in rows if row.index is not None]
            for slot, token in zip(generating, output.tokens.tolist(), strict=True):
                out[slot - first_slot].append(token)
        return [tokens[:count] for tokens in out]


def _int32(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)
