"""Residents: each sequence in one list, slots held only by who needs one."""

from __future__ import annotations

import pytest
from headrace_engine.state.sequence import Status
from support.engine import Rig


@pytest.mark.rule("seq.waiting-holds-no-slot")
def test_waiting_sequences_hold_no_slot() -> None:
    rig = Rig(max_batch=2)
    for i in range(5):
        rig.push([i], 5)
    rig.step()
    residents = rig.scheduler.residents
    assert residents.free_slots == 0
    waiting = [s for s in residents.sequences.values() if s.status is Status.WAITING]
    assert len(waiting) == 3
    assert all(s.slot is None for s in waiting)
    rig.run()
    rig.assert_idle()


def test_a_paused_sequence_waits_until_its_batch_is_back_and_then_without_a_slot() -> None:
    rig = Rig(phases=2, pool_blocks=6, max_batch=3, session_tokens=20)
    for i in range(3):
        rig.push([i, 1], 18)
    while rig.loop.metrics.get().preemptions == 0:
        rig.step()
    (paused,) = [s for s in rig.scheduler.residents.sequences.values() if s.preemptions]
    assert paused.status is Status.WAITING
    assert paused.slot is None
    assert paused.filled > 0
    assert paused.length == paused.filled + 1, "its last token came back before it waits"
    rig.run()
    for handle in rig.requests:
        rig.assert_true(handle)
        assert len(rig.tokens(handle)) == 18
    rig.assert_idle()


@pytest.mark.rule("seq.release-when-idle")
def test_an_ended_sequence_keeps_its_blocks_while_a_batch_of_it_is_in_flight() -> None:
    rig = Rig(phases=2, cache_stats_interval_s=0.0)
    handle = rig.push([1, 2, 3], 30)
    for _ in range(4):
        rig.step()
    rig.cancel(handle)
    rig.loop.step()
    residents = rig.scheduler.residents
    assert not residents.sequences, "one pass: cancelled, its batch taken back, released"
    rig.run()
    rig.assert_idle()


def test_decodes_are_charged_to_their_tenant_at_the_quantum_and_at_the_end() -> None:
    rig = Rig(quantum_passes=4)
    rig.push([1, 2, 3, 4, 5], 9, tenant="a")
    rig.push([1], 60, tenant="b")
    for _ in range(8):
        rig.step()
    order = rig.scheduler.residents.order
    assert order.counter("a") == pytest.approx(5 + 7, abs=1)
    assert order.counter("b") == pytest.approx(1 + 7, abs=1)
    while len(rig.scheduler.residents.sequences) == 2:
        rig.step()
    assert order.counter("a") in (0.0, 13.0)


def test_audit_notices_a_sequence_in_no_list() -> None:
    rig = Rig()
    rig.push([1, 2], 5)
    rig.step()
    residents = rig.scheduler.residents
    (sequence,) = residents.sequences.values()
    residents.sequences[99] = sequence
    with pytest.raises(AssertionError, match="in no list or in two"):
        residents.audit()
