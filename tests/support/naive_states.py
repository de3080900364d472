"""Recurrent states as one writes them first: where a sequence can begin, and where a state is kept.

Written from the contract (``services/engine/CONTRACT.md``, *states*). One state takes the memory of
one block.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace_engine.scheduler.settings import SchedulerSettings
from support.naive_blocks import NaiveBlock, NaiveBlocks, NaiveSequence, NaiveState


@dataclass(frozen=True)
class Start:
    """Where a sequence can begin, and what is copied before."""

    begin: int
    sibling: NaiveBlock | None = None
    state: NaiveState | None = None

    @property
    def sources(self) -> list[NaiveBlock | NaiveState]:
        """What keeps its memory meanwhile."""
        return [each for each in (self.sibling, self.state) if each is not None]


def starts_at_a_state(
    sequence: NaiveSequence, resume: int, sibling: tuple[NaiveBlock, int] | None
) -> list[Start]:
    """The farthest place at which a state stands; and the one that needs no copy.

    ``resume`` positions are valid; ``sibling`` is what may be copied, and up to which position.
    """
    frontier = sequence.frontier
    assert frontier is not None
    stands = frontier.valid and frontier.memory and frontier.position <= resume
    own = Start(frontier.position if stands else 0)
    ways = [own]
    for block in sequence.blocks:
        ways += [Start(s.position, None, s) for s in block.states if s.memory]
    ways = [way for way in ways if way.begin <= resume]
    if sibling is not None:
        block, part = sibling
        ways += [
            Start(s.position, block, s) for s in block.states if s.memory and s.position <= part
        ]
    best = max(ways, key=lambda way: way.begin)  # the first of several: fewer copies
    return [best, own] if best.sources else [own]


def home(
    blocks: NaiveBlocks, settings: SchedulerSettings, sequence: NaiveSequence, position: int
) -> NaiveBlock | None:
    """The block with which others find a state at this position; None: nobody would, or one is there."""
    if position < 1 or (settings.cache_generation == "none" and position > sequence.prompt):
        return None
    block = sequence.blocks[(position - 1) // settings.block_tokens]
    end = (block.index + 1) * settings.block_tokens if block.path is not None else 0
    if block.offer is not None:
        end = len(block.offer[2])
    taken = any(state.position == position for state in block.states)
    return block if end >= position and not taken else None


def boundary(settings: SchedulerSettings, sequence: NaiveSequence) -> int:
    """Where the prompt again would begin; 0: no state is kept for that."""
    position = sequence.prompt - settings.cache_prompt_boundary_skip
    if position < 1 or position <= sequence.checkpointed:
        return 0
    first = (position - 1) // settings.block_tokens * settings.block_tokens
    if settings.cache_prompt == "auto" and not sequence.shows_image(first, position):
        return 0
    return position


def stop(
    blocks: NaiveBlocks, settings: SchedulerSettings, sequence: NaiveSequence, begin: int, end: int
) -> tuple[int, bool]:
    """Where a chunk ends that could reach ``end``, and whether its state is kept there."""
    due = sequence.checkpointed + settings.cache_checkpoint_interval
    places = [at for at in range(begin + 1, end + 1) if at == boundary(settings, sequence)]
    last = end - end % settings.block_tokens
    if not places and last > begin and last >= due:
        places = [last]
    if places and home(blocks, settings, sequence, places[0]) is not None:
        return places[0], True
    return end, False
