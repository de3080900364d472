"""Holdings: what is held, and how much more may be claimed."""

from __future__ import annotations

from headrace_engine.intake.held import Holdings
from headrace_engine.state.request import RequestHandle
from support.held import make_held


def test_credit_is_the_room_that_no_sequence_uses() -> None:
    holdings = Holdings(slots=3, max_waiting=1)

    holdings.entered(RequestHandle(1), 3)
    assert (holdings.resident, holdings.credit) == (3, 1)

    holdings.left(RequestHandle(1))
    assert (holdings.resident, holdings.credit) == (2, 2)


def test_a_forgotten_request_uses_room_until_the_engine_says_that_it_left() -> None:
    holdings = Holdings(slots=1, max_waiting=1)
    held = make_held()
    holdings.add(held)
    holdings.entered(held.handle, 1)

    holdings.remove(held)
    assert (len(holdings), holdings.credit) == (0, 1)

    holdings.left(held.handle)
    assert holdings.credit == 2


def test_a_request_of_many_choices_may_overdraw_the_credit() -> None:
    holdings = Holdings(slots=2, max_waiting=1)

    holdings.entered(RequestHandle(1), 8)

    assert holdings.credit < 0


def test_handles_are_never_used_again() -> None:
    holdings = Holdings(slots=1, max_waiting=1)

    assert len({holdings.next_handle() for _ in range(10)}) == 10


def test_a_request_is_found_by_id_and_by_handle() -> None:
    holdings = Holdings(slots=1, max_waiting=1)
    held = make_held(attempt=3)
    holdings.add(held)

    assert holdings.get("r1") is held
    assert holdings.of(held.handle) is held
    assert holdings.attempts() == {"r1": 3}
    assert list(holdings) == [held]
    assert holdings.holds(held)

    holdings.remove(held)
    assert holdings.get("r1") is None
    assert not holdings.holds(held)
