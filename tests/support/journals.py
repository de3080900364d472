"""A journal of a small run, made without a device."""

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
