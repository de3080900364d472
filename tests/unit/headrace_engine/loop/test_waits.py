"""Seconds by reason, as they are told with a sequence's end, sum to the time that it waited."""

from __future__ import annotations

import pytest
from headrace_engine.scheduler.reasons import Reason
from headrace_engine.state.sequence import Status
from support.engine import Rig


@pytest.mark.rule("reasons.exactly-one")
def test_reasons_sum_to_the_queue_time_of_a_sequence_that_was_never_preempted() -> None:
    rig = Rig(max_batch=1, max_waiting=1)
    handles = [rig.push([1, 2, 3, i], 3) for i in range(6)]
    while rig.busy:
        rig.clock.advance(0.5)
        rig.step()
    waited = 0.0
    for handle in handles:
        end = rig.choice(handle).end
        assert end is not None
        assert end.usage.preemptions == 0
        assert sum(end.usage.waits.values()) == pytest.approx(end.usage.queue_s)
        assert set(end.usage.waits) <= {reason.value for reason in Reason}
        waited += end.usage.queue_s
    assert waited > 5, "nobody had to wait"


@pytest.mark.rule("reasons.exactly-one")
@pytest.mark.parametrize("phases", [1, 2])
def test_with_preemption_they_sum_to_all_the_time_without_a_place(phases: int) -> None:
    rig = Rig(pool_blocks=8, phases=phases)
    handles = [rig.push([i] * 7, 14) for i in range(5)]
    arrived_s = rig.clock.monotonic()
    waited = dict.fromkeys(map(int, handles), 0.0)
    while rig.busy:
        before = rig.clock.monotonic()
        rig.clock.advance(0.5)
        sequences = rig.scheduler.residents.sequences.values()
        for sequence in sequences:
            if sequence.status in (Status.WAITING, Status.PAUSED):
                waited[sequence.request.handle] += rig.clock.monotonic() - before
        if not sequences:
            for handle in waited:
                waited[handle] += rig.clock.monotonic() - arrived_s
        rig.step()
    preemptions = 0
    for handle in handles:
        end = rig.choice(handle).end
        assert end is not None
        preemptions += end.usage.preemptions
        assert sum(end.usage.waits.values()) == pytest.approx(waited[handle])
    assert preemptions


def test_a_request_cancelled_while_it_waits_has_waited_until_then() -> None:
    rig = Rig(max_batch=1)
    rig.push([1, 2], 9)
    handle = rig.push([3, 4], 9)
    for _ in range(4):
        rig.clock.advance(1.0)
        rig.step()
    rig.cancel(handle)
    rig.step()
    end = rig.choice(handle).end
    assert end is not None
    assert end.usage.waits == {Reason.BATCH_ROWS.value: 3.0, Reason.PRIORITY.value: 1.0}
