"""Checkpoints of a recurrent state: where one is kept, and how it is published.

Owner    engine thread
Writes   checkpoints of blocks, the copies of a plan
Never    takes memory that somebody needs; changes who runs
Rules    states.interval, states.optional
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace_engine.cache.block import LogicalBlock, SequenceBlocks
from headrace_engine.scheduler.admit import touches_media
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.copies import resolve_copy
from headrace_engine.scheduler.grant import Grants
from headrace_engine.scheduler.policy import publication_end
from headrace_engine.scheduler.publish import block_at
from headrace_engine.scheduler.replay import replay_memory
from headrace_engine.scheduler.residents import Residents
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.state.sequence import Sequence, Status


def plan_publication(
    settings: SchedulerSettings, holder: SequenceBlocks, sequence: Sequence, begin: int, end: int
) -> tuple[int, bool]:
    """Where a chunk that might run to ``end`` stops, and whether the state there is to be kept.

    At the boundary of the prompt, so that the prompt again can begin there; and at a block's
    boundary once per interval. A place that nobody could find is none.
    """
    size = settings.block_tokens
    boundary = _boundary(settings, holder, sequence)
    due = holder.checkpointed + settings.cache_checkpoint_interval
    stop = publication_end(begin=begin, end=end, boundary=boundary, due=due, block_tokens=size)
    if stop != boundary and (stop % size or stop < due):
        return end, False
    found = block_at(settings, holder, sequence, stop) is not None
    return (stop, True) if found else (end, False)


def publish_states(
    residents: Residents,
    settings: SchedulerSettings,
    plan: PassPlan,
    crossed: Iterable[tuple[Sequence, LogicalBlock]],
) -> Grants:
    """Keeps states of a committed pass, as far as there is memory that nobody needs.

    After a chunk the state at its end is copied. A sequence that decodes is at a block's boundary
    before its forward: its copy is the last of those done before. Returns what was taken.
    """
    grants = Grants(residents.pool, residents.claimants)
    taken: dict[tuple[LogicalBlock, int], tuple[SequenceBlocks, LogicalBlock, bool]] = {}
    for sequence, position, after in _kept(residents, settings, plan, crossed):
        holder = residents.holders[sequence.number]
        block = block_at(settings, holder, sequence, position)
        if block is None or (block, position) in taken:
            continue
        state = residents.pool.make_checkpoint(position)
        if block.extent >= position - block.offset and grants.take_spare(state):
            taken[block, position] = holder, state, after
    residents.counters.evictions += replay_memory(grants, residents.pool)
    for (block, position), (holder, state, after) in taken.items():
        assert holder.frontier is not None
        copies = resolve_copy(residents.pool, holder.frontier, state)
        (plan.publishes if after else plan.restores).extend(copies)
        state.publisher = holder.number
        state.origins = frozenset(holder.origins)
        residents.pool.attach_state(block, state)
        holder.checkpointed = position
    return grants


def _kept(
    residents: Residents,
    settings: SchedulerSettings,
    plan: PassPlan,
    crossed: Iterable[tuple[Sequence, LogicalBlock]],
) -> Iterator[tuple[Sequence, int, bool]]:
    """Whose state is to be kept, at which position, and whether it is there after the forward."""
    for chunk in plan.chunks:
        if chunk.stops:
            yield chunk.sequence, chunk.end, True
        # Inside a full block nothing is found before the block is: then the state is still there.
        holder = residents.holders[chunk.sequence.number]
        if chunk.begin and chunk.begin == _boundary(settings, holder, chunk.sequence):
            yield chunk.sequence, chunk.begin, False
    for sequence, block in crossed:
        holder = residents.holders[sequence.number]
        due = holder.checkpointed + settings.cache_checkpoint_interval
        if sequence.status is Status.RUNNING and block.offset >= due:
            yield sequence, block.offset, False


def _boundary(settings: SchedulerSettings, holder: SequenceBlocks, sequence: Sequence) -> int:
    """Where the prompt again would begin; 0: nothing is kept there."""
    size, prompt = settings.block_tokens, sequence.prompt_tokens
    boundary = prompt - settings.cache_prompt_boundary_skip
    if boundary < 1 or boundary <= holder.checkpointed:
        return 0
    first = (boundary - 1) // size * size
    if settings.cache_prompt == "auto" and not touches_media(
        sequence.request.media, first, boundary
    ):
        return 0
    return boundary
