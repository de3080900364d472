"""Plans: where a sequence can go on, and which blocks it lacks. They change nothing.

Owner    engine thread
Writes   nothing
Never    allocates, activates, evicts
Rules    sched.planning-is-free, sched.at-least-one-token, siblings.never-early, states.exact
Next     headrace_engine.scheduler.grant
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace_engine.cache.block import HeldRun, LogicalBlock, SequenceBlocks, Sibling
from headrace_engine.state.sequence import SequenceColumns


class ResumePlan(NamedTuple):
    """How a sequence that holds no slot, or has known context left, can go on."""

    resume: int
    """Position of the first token to compute; everything before it is valid."""
    store_from: int
    """KV below it is shared and valid: it is read, never written."""
    missing: tuple[LogicalBlock, ...]
    """What lacks memory: the frontier, then blocks of the known context in position order."""


class Way(NamedTuple):
    """One way to go on: where, and what has to be copied before."""

    begin: int
    """Position of the first token to compute."""
    sibling: LogicalBlock | None = None
    """Its beginning is copied into the sequence's block at the same place."""
    state: LogicalBlock | None = None
    """The checkpoint that is copied into the frontier."""

    @property
    def sources(self) -> tuple[LogicalBlock, ...]:
        """What is copied from, and must keep its memory in this pass."""
        sibling, state = self.sibling, self.state
        if sibling is None:
            return () if state is None else (state,)
        return (sibling,) if state is None else (sibling, state)


def plan_resume(
    holder: SequenceBlocks, *, known: int, filled: int, lost: Set[LogicalBlock]
) -> ResumePlan:
    """For one that waits: how far it is valid, and what it lacks.

    ``filled`` positions were written by committed passes, so that the valid part of a private
    block is known. Blocks in ``lost`` count as without memory: this pass has taken theirs.
    At least the last known token is always computed, since its logits are wanted.
    """
    whole, resume, store_from = _valid_part(holder, 0, filled, lost)
    lacking = [
        b
        for b in holder.blocks[whole : -(-known // holder.blocks[0].capacity)]
        if (held := b.slot) is None or held.allocation is None or b in lost
    ]
    frontier = holder.frontier
    if frontier is not None and (not frontier.allocated or frontier in lost):
        lacking.insert(0, frontier)
    return ResumePlan(min(resume, known - 1), store_from, tuple(lacking))


def plan_further(
    holder: SequenceBlocks, *, known: int, begin: int, lost: Set[LogicalBlock]
) -> ResumePlan:
    """As ``plan_resume``, for one that runs and is planned up to ``begin``: it lacks nothing."""
    first_block = begin // holder.blocks[0].capacity
    _, resume, store_from = _valid_part(holder, first_block, begin, lost)
    return ResumePlan(min(resume, known - 1), store_from, ())


def _valid_part(
    holder: SequenceBlocks, first_block: int, filled: int, lost: Set[LogicalBlock]
) -> tuple[int, int, int]:
    """Walks the blocks from ``first_block`` on to the first that is not valid or has no memory.

    Returns the index behind those that are indexed and whole, and so have memory; the position up to
    which all is valid; and that below which it is shared.
    """
    blocks = holder.blocks
    size = blocks[0].capacity
    whole, chained = first_block, holder.chained
    while whole < chained:
        run = blocks[whole].run
        if not lost and (run.valid or (blocks[run.end - 1].valid and _seen_valid(run, blocks))):
            whole = min(run.end, chained)
            continue
        for block in blocks[whole : min(run.end, chained)]:
            if not block.valid or block in lost:
                chained = whole
                break
            whole += 1
    resume = store_from = whole * size
    for index in range(whole, len(blocks)):
        block = blocks[index]
        if not block.valid or block in lost:
            break
        extent = size if block.indexed else min(max(filled - block.offset, 0), size)
        resume = block.offset + extent
        if extent < size:
            break
        if block.indexed:
            store_from = resume
    return whole, resume, store_from


def _seen_valid(run: HeldRun, blocks: list[LogicalBlock]) -> bool:
    """Whether every block of a run is valid. Noted there, so that the next one need not look."""
    for block in blocks[run.first : run.end]:
        if not block.valid:
            return False
    run.valid = True
    return True


def resume_ways(
    holder: SequenceBlocks, plan: ResumePlan, *, known: int, lost: Set[LogicalBlock]
) -> list[Way]:
    """The best way to go on, and behind it one that needs no source, for when memory is short.

    A model with a recurrent state goes on where one is: at its frontier, or at a checkpoint that
    lies within what is valid, or else at the beginning.
    """
    upper = known - 1
    sibling = usable_sibling(holder, plan, lost)
    part = 0 if sibling is None else min(plan.resume + sibling.common, upper)
    if holder.frontier is None:
        own = Way(plan.resume)
        if sibling is None or part <= plan.resume:
            return [own]
        return [Way(part, sibling.source), own]
    own = Way(_frontier_at(holder, plan.resume, lost))
    best = own
    for block in reversed(holder.blocks[: -(-plan.resume // holder.blocks[0].capacity)]):
        if block.end <= best.begin:
            break  # what lies before it is no better
        best = _better(best, block, plan.resume, lost, None)
    if sibling is not None:
        best = _better(best, sibling.source, part, lost, sibling.source)
    return [best, own] if best.sources else [own]


def usable_sibling(
    holder: SequenceBlocks, plan: ResumePlan, lost: Set[LogicalBlock]
) -> Sibling | None:
    """The holder's sibling, as far as earlier passes wrote it, if the sequence goes on there."""
    sibling = holder.sibling
    if sibling is None or sibling.source.offset != plan.resume or sibling.source in lost:
        return None
    common = min(sibling.common, sibling.source.extent)
    return Sibling(sibling.source, common) if common else None


def _frontier_at(holder: SequenceBlocks, upper: int, lost: Set[LogicalBlock]) -> int:
    """Position at which the frontier can go on; 0: it begins anew."""
    frontier = holder.frontier
    if frontier is None or not frontier.valid or frontier in lost or frontier.offset > upper:
        return 0
    return frontier.offset


def _better(
    best: Way,
    block: LogicalBlock,
    upper: int,
    lost: Set[LogicalBlock],
    sibling: LogicalBlock | None,
) -> Way:
    for state in block.states:
        if best.begin < state.offset <= upper and state not in lost:
            best = Way(state.offset, sibling, state)
    return best


class Decodes(NamedTuple):
    """Rows that decode one token."""

    slots: NDArray[np.intp]
    """Indices as numpy wants them: others cost five times as much at every use."""
    begins: NDArray[np.int32]
    """Position of the token that each runs."""

    def only(self, which: NDArray[np.bool_]) -> Decodes:
        """Some of them."""
        return Decodes(self.slots[which], self.begins[which])


def plan_continue(
    columns: SequenceColumns, decoding: NDArray[np.intp]
) -> tuple[Decodes, NDArray[np.intp]]:
    """Who decodes one token, and the slots among them that need a block for it.

    A slot whose last wanted token is already in flight is left out.
    """
    decodes = Decodes(decoding, columns.planned[decoding])
    # One that decodes has sampled one token more than it has planned.
    wanting = decodes.begins < columns.limit[decoding] - 1
    if np.count_nonzero(wanting) < len(wanting):
        decodes = decodes.only(wanting)
    return decodes, decodes.slots[decodes.begins >= columns.capacity[decodes.slots]]
