"""EngineGateway: the door between any threads, the engine thread and the signal thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.errors import EngineDraining
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.state.inbound import Cancel, Inbound
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from support.clock import FakeClock


def make(handle: int, n: int = 1, **fields: object) -> Request:
    prompt = np.zeros(3, np.int32)
    sampling = Sampling(max_new_tokens=1)
    return Request(f"r{handle}", RequestHandle(handle), prompt, sampling, n=n, **fields)  # pyright: ignore[reportArgumentType]


def cancel(handle: int, choice: int | None = None) -> Cancel:
    return Cancel(RequestHandle(handle), FinishReason.CANCELLED, choice)


def handles(inbound: Inbound) -> list[int]:
    return [request.handle for request in inbound.requests]


@pytest.mark.rule("gateway.pop-budget")
def test_a_pop_brings_at_most_its_budget_in_order_of_arrival() -> None:
    door = EngineGateway()
    for handle in (1, 2, 3):
        door.push(make(handle))
    assert handles(door.pop(2, block=False)) == [1, 2]
    assert handles(door.pop(0, block=False)) == []
    assert door.queued == 1
    assert handles(door.pop(9, block=True)) == [3]


def test_each_request_comes_with_the_time_of_its_arrival() -> None:
    clock = FakeClock(monotonic_s=5.0)
    door = EngineGateway(clock)
    door.push(make(1))
    clock.advance(3)
    door.push(make(2))
    assert door.pop(9, block=False).pushed_s == {1: 5.0, 2: 8.0}


@pytest.mark.parametrize("event", ["push", "cancel", "drain", "close"])
def test_a_blocked_pop_is_woken_by_whatever_happens(event: str) -> None:
    door = EngineGateway()
    seen: list[Inbound] = []
    thread = threading.Thread(target=lambda: seen.append(door.pop(1, block=True)))
    thread.start()
    if event == "push":
        door.push(make(1))
    elif event == "cancel":
        door.cancel(cancel(9))
    elif event == "drain":
        door.drain()
    else:
        door.close()
    thread.join(10)
    (inbound,) = seen
    assert handles(inbound) == ([1] if event == "push" else [])
    assert len(inbound.cancels) == (event == "cancel")
    assert inbound.drain == (event in ("drain", "close"))
    assert inbound.abort == (event == "close")


def test_a_pop_that_waits_for_nothing_ends_with_its_time() -> None:
    door = EngineGateway()
    assert handles(door.pop(1, block=True, timeout_s=0.001)) == []


@pytest.mark.rule("request.one-terminal-status")
def test_a_request_cancelled_before_the_pop_ends_here_and_never_reaches_the_engine() -> None:
    clock = FakeClock()
    door = EngineGateway(clock)
    earlier = np.zeros(2, np.int32), np.zeros(0, np.int32), np.zeros(1, np.int32)
    door.push(make(1, n=3, generated=earlier, finished=frozenset([1])))
    clock.advance(2)
    door.cancel(cancel(1))
    door.cancel(cancel(1))
    (outputs,) = door.take_outputs(0) or []
    assert outputs.handles.tolist() == [1, 1]
    assert outputs.choices.tolist() == [0, 2]
    assert outputs.firsts.tolist() == [2, 1]
    assert outputs.counts.tolist() == [0, 0]
    assert [end.reason for end in outputs.ends] == [FinishReason.CANCELLED] * 2
    assert [end.code for end in outputs.ends] == [Code.CANCELLED] * 2
    assert outputs.ends[0].usage.queue_s == 2
    inbound = door.pop(9, block=False)
    assert inbound.requests == []
    # The second cancel names a request nobody knows any more: the engine passes over it.
    assert [c.handle for c in inbound.cancels] == [1]


def test_a_cancel_after_the_pop_goes_to_the_engine() -> None:
    door = EngineGateway()
    door.push(make(1))
    door.pop(1, block=False)
    door.cancel(cancel(1))
    assert door.take_outputs(0) == []
    assert [c.handle for c in door.pop(1, block=True).cancels] == [1]


def test_a_cancel_of_one_choice_waits_for_its_request() -> None:
    door = EngineGateway()
    door.push(make(1))
    door.push(make(2, n=2))
    door.cancel(cancel(2, choice=1))
    assert door.pop(1, block=False).cancels == []
    inbound = door.pop(1, block=False)
    assert handles(inbound) == [2]
    assert [(c.handle, c.choice) for c in inbound.cancels] == [(2, 1)]


def test_a_drained_door_takes_no_more() -> None:
    door = EngineGateway()
    door.push(make(1))
    door.drain()
    with pytest.raises(EngineDraining) as refused:
        door.push(make(2))
    assert refused.value.code is Code.DRAINING
    inbound = door.pop(9, block=False)
    assert handles(inbound) == [1]
    assert inbound.drain


def test_after_close_everything_queued_comes_whatever_the_budget() -> None:
    door = EngineGateway()
    for handle in (1, 2, 3):
        door.push(make(handle))
    door.close()
    inbound = door.pop(0, block=True)
    assert handles(inbound) == [1, 2, 3]
    assert inbound.abort


def test_finish_ends_what_is_queued_and_then_the_outputs() -> None:
    door = EngineGateway()
    door.push(make(1))
    door.finish(Code.ENGINE_FAILED, "it broke")
    (outputs,) = door.take_outputs(0) or []
    assert [(e.reason, e.code, e.message) for e in outputs.ends] == [
        (FinishReason.ERROR, Code.ENGINE_FAILED, "it broke")
    ]
    assert door.take_outputs(0) is None
    with pytest.raises(EngineDraining):
        door.push(make(2))


@pytest.mark.rule("outputs.flat")
def test_outputs_reach_the_signal_thread_in_order() -> None:
    door = EngineGateway()
    none = np.zeros(0, np.int32)
    for i in range(3):
        door.notify(PassOutputs(i, np.zeros(0, np.int64), none, none, none, none))
    assert [o.pass_id for o in door.take_outputs(1) or []] == [0, 1, 2]
    assert door.take_outputs(0) == []
