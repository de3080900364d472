"""A state that is taken over many passes is the one of the pass in which it ends."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
from headrace_engine.scheduler.commit import PassPlan
from headrace_engine.scheduler.grant import MemoryOp
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_snapshot import Taking, capture
from support.engine import RecurrentExecutor, Rig, TokenExactExecutor


class Watching(Journal):
    """Shows every plan to one more."""

    taking: Taking | None = None

    def planned(
        self, plan: PassPlan, ops: Sequence[MemoryOp], residents: Any, now_s: float
    ) -> None:
        super().planned(plan, ops, residents, now_s)
        if self.taking is not None:
            self.taking.planned(plan, ops)


@pytest.mark.rule("journal.snapshot-is-whole")
@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("step", [1, 3])
def test_what_was_seen_while_everything_moved_is_what_is_there_at_the_end(
    phases: int, recurrent: bool, step: int
) -> None:
    rng = random.Random(step)
    journal = Watching(1 << 30)
    executor = RecurrentExecutor((8,)) if recurrent else TokenExactExecutor()
    rig = Rig(
        executor=executor,
        journal=journal,
        phases=phases,
        pool_blocks=14,
        cache_checkpoint_interval=4,
        ageing_s=4.0,
    )
    taken = longest = passes = 0
    while taken < 10:
        if rng.random() < 0.3:
            prompt = [1, 2, 3, 4, 5] * rng.randint(0, 3) + [rng.randrange(3)] * rng.randint(1, 6)
            rig.push(prompt, rng.randint(1, 9), n=rng.choice([1, 2]), tenant=rng.choice("ab"))
        if rng.random() < 0.05 and rig.requests:
            rig.cancel(rig.requests[rng.choice(sorted(rig.requests))].handle)
        if rng.random() < 0.05:
            executor.fail_rows.add((rig.scheduler.passes + 1, 0))
        rig.clock.advance(0.5)
        rig.step()
        if journal.taking is None:
            journal.taking, passes = Taking(rig.scheduler), 0
        elif journal.taking.advance(step):
            assert journal.taking.finish().state() == capture(rig.scheduler)
            journal.taking = None
            taken, longest = taken + 1, max(longest, passes)
        passes += 1
    assert longest > 3, "it was never taken over several passes"
    assert rig.scheduler.residents.counters.evictions


@pytest.mark.rule("journal.snapshot-is-whole")
def test_a_pass_looks_at_so_many_blocks_and_those_that_changed() -> None:
    rig = Rig(pool_blocks=64, session_tokens=64)
    for i in range(3):
        rig.push([i] * 40, 2)
    rig.run()
    assert len(rig.scheduler.pool.trie) == 30
    taking = Taking(rig.scheduler)
    looks = 1
    while not taking.advance(4):
        looks += 1
    assert looks == 9, "33 blocks, three of them offered"
    assert len(taking.finish().state()["blocks"]) == 33
    assert rig.scheduler.pool.trie.changes is None


@pytest.mark.rule("journal.keys-only")
def test_a_snapshot_keeps_no_token_ids_of_sequences() -> None:
    rig = Rig()
    rig.push([1, 2, 3], 4)
    rig.push([4, 5, 6], 4)
    rig.step()
    taking = Taking(rig.scheduler)
    assert taking.advance(1 << 30)
    snapshot = taking.finish()
    expected = capture(rig.scheduler)["sequences"]
    tokens = [weakref.ref(s.tokens) for s in rig.scheduler.residents.sequences.values()]
    assert len(tokens) == 2
    del rig, taking  # what the snapshot does not keep goes with them
    gc.collect()

    assert [ref() for ref in tokens] == [None, None]
    assert snapshot.state()["sequences"] == expected
