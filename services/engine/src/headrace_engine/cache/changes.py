"""What changed in blocks while somebody takes their state over several passes.

Owner    engine thread
Writes   its own marks
Never    changes a block; is there while nobody watches
Rules    journal.snapshot-is-whole
Next     headrace_engine.scheduler.journal_state
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_engine.cache.block import LogicalBlock


@dataclass(slots=True)
class Changes:
    """Marks of the trie and the pool. What a pass's plan names is not marked: it can be seen there."""

    touched: dict[LogicalBlock, None] = field(default_factory=dict[LogicalBlock, None])
    """Not looked at since they changed."""
    placed: dict[LogicalBlock, None] = field(default_factory=dict[LogicalBlock, None])
    """That came into the trie, in that order; at its end, each time."""

    def place(self, block: LogicalBlock) -> None:
        """It is indexed or offered from now on."""
        self.placed.pop(block, None)
        self.placed[block] = None
        self.touched[block] = None
