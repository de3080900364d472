"""replay_memory: the only place where a pass changes who has memory.

Owner    engine thread
Writes   CacheBlock.allocation, LogicalBlock.valid, pins
Never    decides; fails
Rules    sched.one-replay, sched.trial-equals-outcome
Next     headrace_engine.scheduler.commit
"""

from __future__ import annotations

from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.scheduler.grant import Grants


def replay_memory(grants: Grants, pool: LogicalBlockPool) -> int:
    """Carries out what the trial left standing, in its order. Returns evictions.

    The allocator itself is in its final state already: the trial worked on it.
    """
    evictions = 0
    for block, allocation, granted in grants.ops:
        if granted:
            pool.pin(block, allocation)
        else:
            taken = pool.unpin(block)
            assert taken is allocation, "replay differs from the trial"
            evictions += 1
    return evictions
