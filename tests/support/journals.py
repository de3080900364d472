"""Journals of runs that are made without a device."""

from __future__ import annotations

from typing import Any

from headrace_engine.scheduler.journal import Journal
from support.engine import Rig

SECRET = 42
"""A token id that stands in every prompt."""


def recorded(
    *, limit_bytes: int = 1 << 30, requests: int = 6, new_tokens: int = 8, **changes: Any
) -> tuple[Journal, Rig]:
    """Requests one after the other, two with the same prefix, a cancel, memory that is short."""
    journal = Journal(limit_bytes)
    fields: dict[str, Any] = {"pool_blocks": 10, "phases": 2, **changes}
    rig = Rig(journal=journal, **fields)
    for i in range(requests):
        prompt = [SECRET] * 8 + [i % 3] * (3 + i)
        rig.push(prompt, new_tokens, tenant="ab"[i % 2], cache_salt=b"pepper")
        rig.clock.advance(0.25)
        rig.step()
    cancelled = rig.push([SECRET] * 5, 12)
    rig.step()
    rig.cancel(cancelled)
    while rig.busy:
        rig.clock.advance(0.125)
        rig.step()
    journal.flush()
    return journal, rig


def recorded_slowly(journal: Journal, new_tokens: int) -> Rig:
    """Long prompts, for a journal that looks at one block in a pass: 1,000 are cached, so a snapshot
    would not be whole before the run ends.
    """
    rig = Rig(
        journal=journal,
        pool_blocks=2000,
        session_tokens=1600,
        batch_tokens=2048,
        max_batch=4,
        audit=False,  # which looks at every block in every pass
    )
    for i in range(4):
        rig.push([i] * 1000, new_tokens)
    rig.run()
    assert len(rig.scheduler.pool.trie) > 4 * 250, "a snapshot would have taken all passes"
    return rig
