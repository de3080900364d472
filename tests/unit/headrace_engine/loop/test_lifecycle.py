"""Lifecycle: requests become sequences, and each gets one end with honest numbers."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import Code, FinishReason
from support.engine import Rig


def test_usage_tells_the_times_of_each_part() -> None:
    rig = Rig(max_batch=1, prefill_chunk_tokens=4, batch_tokens=8)
    first = rig.push([1] * 7, 3)
    second = rig.push([2] * 10, 4)
    for _ in range(40):
        rig.clock.advance(1.0)
        rig.step()
    end = rig.choice(second).end
    start = rig.choice(second).started
    assert end is not None
    assert start is not None
    # The first runs in passes at 1 .. 3 s; the second needs two passes for its prompt.
    assert end.usage.queue_s == start.queue_s == 4.0
    assert end.usage.prefill_s == 1.0
    assert end.usage.decode_s == 3.0
    assert end.usage.completion_tokens == 4
    assert rig.reason(first) is FinishReason.LENGTH


def test_one_that_never_ran_only_queued() -> None:
    rig = Rig(max_batch=1)
    rig.push([1], 30)
    waiting = rig.push([2], 30)
    rig.step()
    rig.clock.advance(5.0)
    rig.cancel(waiting)
    rig.step()
    end = rig.choice(waiting).end
    assert end is not None
    assert end.code is Code.CANCELLED
    assert end.usage.queue_s == 5.0
    assert end.usage.prefill_s == end.usage.decode_s == 0.0
    rig.run()


@pytest.mark.rule("request.one-terminal-status")
def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    rig = Rig()
    handle = rig.push([1], 2)
    rig.run()
    end = rig.choice(handle).end
    rig.cancel(handle)
    rig.push([5], 1)
    rig.run()
    other = rig.push([1], 20)
    rig.step()
    rig.cancel(other)
    rig.cancel(other, FinishReason.STOP)
    rig.run()
    assert rig.choice(handle).end is end
    assert rig.reason(other) is FinishReason.CANCELLED
    rig.assert_idle()


def test_a_request_whose_choices_have_all_ended_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.push([1], n=2, finished=frozenset([0, 1]))
    rig.step()
    assert not rig.scheduler.residents.sequences
    lifecycle = rig.loop._lifecycle  # pyright: ignore[reportPrivateUsage]
    assert not lifecycle._by_handle  # pyright: ignore[reportPrivateUsage]


def test_nothing_is_counted_twice_or_forgotten_after_ends() -> None:
    rig = Rig()
    for i in range(3):
        rig.push([i], 3, stop_token_ids=frozenset([1, 2]), logprobs=0, deadline_s=1e9)
    rig.run()
    lifecycle = rig.loop._lifecycle  # pyright: ignore[reportPrivateUsage]
    assert not lifecycle.stop_tokens.any()
    assert lifecycle.logprobs_wanted == 0
    assert lifecycle.resident == 0
    assert sum(lifecycle.finished.values()) == 3


def test_deadlines_of_those_that_are_gone_do_not_pile_up() -> None:
    rig = Rig(max_batch=8, max_waiting=504, batch_tokens=64, audit=False)
    for i in range(3000):
        rig.push([i % 90], 1, deadline_s=1e9)
    rig.run()
    deadlines = rig.loop._lifecycle._deadlines  # pyright: ignore[reportPrivateUsage]
    assert len(deadlines) <= 2 * 512 + 1024


def test_the_door_is_asked_only_for_what_can_be_held() -> None:
    rig = Rig(max_batch=2, max_waiting=3)
    for i in range(9):
        rig.push([i], 20)
    rig.step()
    assert rig.door.queued == 4
    assert len(rig.scheduler.residents.sequences) == 5
    rig.run()
