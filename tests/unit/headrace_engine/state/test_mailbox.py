"""Mailboxes: order, waiting, closing."""

from __future__ import annotations

import threading

import pytest
from headrace_engine.state.mailbox import Mailbox, MailboxClosed, Monitor, NewestCell


@pytest.mark.rule("threads.mailboxes-only")
def test_items_come_out_in_order_on_another_thread() -> None:
    box: Mailbox[int] = Mailbox()
    seen: list[int] = []

    def taker() -> None:
        while (item := box.take()) is not None:
            seen.append(item)

    thread = threading.Thread(target=taker)
    thread.start()
    for i in range(1000):
        box.put(i)
    box.close()
    thread.join(10)
    assert seen == list(range(1000))


def test_take_returns_none_when_the_time_is_over() -> None:
    box: Mailbox[int] = Mailbox()
    assert box.take(0) is None
    assert box.take(0.001) is None
    assert box.take_all(0) == []


def test_take_all_empties_it_and_tells_the_end() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    box.put(2)
    box.close()
    assert box.take_all() == [1, 2]
    assert box.take_all() is None
    assert box.take() is None


def test_a_closed_mailbox_takes_nothing_more() -> None:
    box: Mailbox[int] = Mailbox()
    box.close()
    box.close()
    assert box.closed
    with pytest.raises(MailboxClosed):
        box.put(1)


def test_closing_wakes_who_waits() -> None:
    box: Mailbox[int] = Mailbox()
    results: list[list[int] | None] = []
    thread = threading.Thread(target=lambda: results.append(box.take_all()))
    thread.start()
    box.close()
    thread.join(10)
    assert results == [None]


@pytest.mark.rule("metrics.one-snapshot")
def test_a_cell_shows_the_newest_value() -> None:
    cell: NewestCell[tuple[int, int]] = NewestCell((0, 0))
    torn: list[tuple[int, int]] = []
    done = threading.Event()

    def reader() -> None:
        while not done.is_set():
            first, second = cell.get()
            if first != second:
                torn.append((first, second))

    thread = threading.Thread(target=reader)
    thread.start()
    for i in range(2000):
        cell.put((i, i))
    done.set()
    thread.join(10)
    assert not torn
    assert cell.get() == (1999, 1999)


def test_a_monitor_wakes_who_waits_for_a_condition() -> None:
    monitor = Monitor()
    state: list[int] = []
    heard: list[bool] = []

    def waiter() -> None:
        with monitor:
            heard.append(monitor.wait(lambda: bool(state), 10))

    thread = threading.Thread(target=waiter)
    thread.start()
    with monitor:
        state.append(1)
        monitor.wake()
    thread.join(10)
    assert heard == [True]
    with monitor:
        assert not monitor.wait(lambda: False, 0.001)
