"""replay_memory: the one place where a pass changes who has memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
from headrace_engine.cache.logical_pool import LogicalBlockPool
from headrace_engine.scheduler import scheduler as scheduler_module
from headrace_engine.scheduler.grant import Claimant, Claimants, Grants
from headrace_engine.scheduler.replay import replay_memory
from support.cache import CacheRig, content
from support.engine import Rig


@pytest.mark.rule("sched.one-replay")
def test_evictions_and_grants_are_carried_out_in_their_order() -> None:
    rig = CacheRig(blocks=1)
    gone = rig.enter()
    (old,) = rig.fill(gone, content(1, 2, 3, 4))
    rig.leave(gone)
    taker = rig.enter()
    block = rig.pool.extend(taker)
    given = Grants(rig.pool, lambda: Claimants([]))
    assert given.take(Claimant(taker.number, (0, 0, math.inf, 1), taker, "", runs=True), block)
    assert old.valid
    assert not block.allocated
    assert replay_memory(given, rig.pool) == 1
    assert not old.allocated
    assert block.allocated
    assert not block.valid, "memory is not content"
    rig.audit()


@pytest.mark.rule("sched.one-replay")
def test_a_pass_changes_memory_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(pool_blocks=7, session_tokens=28)
    for i in range(3):
        rig.push([i] * 6, 12)
    depth = {"schedule": 0, "replay": 0}
    changes: list[str] = []

    def watch(owner: Any, name: str, key: str) -> None:
        original = getattr(owner, name)

        def entered(*args: Any, **named: Any) -> Any:
            depth[key] += 1
            try:
                return original(*args, **named)
            finally:
                depth[key] -= 1

        monkeypatch.setattr(owner, name, entered)

    def record(name: str) -> None:
        original = getattr(LogicalBlockPool, name)

        def called(*args: Any) -> Any:
            if depth["schedule"]:
                assert depth["replay"], f"{name} outside the replay"
                changes.append(name)
            return original(*args)

        monkeypatch.setattr(LogicalBlockPool, name, called)

    watch(rig.scheduler, "schedule", "schedule")
    watch(scheduler_module, "replay_memory", "replay")
    record("pin")
    record("unpin")
    rig.run()
    assert {"pin", "unpin"} == set(changes)
