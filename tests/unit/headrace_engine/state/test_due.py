"""DueTimes: each time comes up once and in order, and those of numbers that are gone do not pile up."""

from __future__ import annotations

import pytest
from headrace_engine.state.due import ROOM, DueTimes


def test_what_is_due_comes_up_in_order_of_time_and_once() -> None:
    due = DueTimes({1, 2, 3})
    for at_s, number in ((3.0, 1), (1.0, 2), (2.0, 3), (1.5, 2)):
        due.add(at_s, number)

    assert list(due.until(0.5)) == []
    assert list(due.until(2.0)) == [2, 2, 3]
    assert list(due.until(2.0)) == []
    assert list(due.until(3.0)) == [1]


def test_it_is_asked_who_is_present_when_the_time_has_come() -> None:
    present = {1, 2}
    due = DueTimes(present)
    due.add(1.0, 1)
    due.add(1.0, 2)
    present.remove(1)

    assert list(due.until(1.0)) == [2]


def test_what_is_added_while_it_is_read_comes_up_if_it_is_due() -> None:
    due = DueTimes(range(2 * ROOM))
    due.add(1.0, 1)
    seen: list[int] = []
    for number in due.until(1.0):
        seen.append(number)
        if number < 2 * ROOM - 1:
            due.add(1.0, number + 1)
            due.add(9.0, number)

    assert seen == list(range(1, 2 * ROOM))


@pytest.mark.rule("order.ageing")
def test_those_that_are_gone_are_let_go_and_none_that_is_present() -> None:
    present: set[int] = set()
    due = DueTimes(present)
    most = 0
    for number in range(50 * ROOM):
        present.add(number)
        due.add(float(-number), number)
        if number >= 10:
            present.remove(number - 10)
        most = max(most, len(due))

    assert most <= ROOM + 2 * 10
    assert list(due.until(0.0)) == sorted(present, reverse=True)
