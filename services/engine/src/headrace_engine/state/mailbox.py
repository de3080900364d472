"""Mailboxes: the only place where the engine's threads meet.

Owner    shared; what is inside is the only synchronisation of the engine
Writes   its own queue or cell
Never    runs a callback; looks into what it carries
Rules    threads.mailboxes-only
Next     headrace_engine.loop.thread
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class MailboxClosed(Exception):
    """Something was put into a mailbox that nobody will empty any more."""


class _Closed:
    """Stands behind the last item."""


_CLOSED: Final = _Closed()


class Mailbox(Generic[T]):
    """A queue from any threads to one. Putting an object in gives it away.

    Bounded by its users: the gateway by credit, the executor by the number of phases.
    """

    __slots__ = ("_closed", "_items", "_putting")

    def __init__(self) -> None:
        # Waits in C: a hand-over takes half of what one takes by a condition.
        self._items: SimpleQueue[T | _Closed] = SimpleQueue()
        self._putting = threading.Lock()
        """Nothing comes in behind the end."""
        self._closed = False

    def put(self, item: T) -> None:
        """Gives ``item`` to the taker. Raises ``MailboxClosed`` after ``close``."""
        with self._putting:
            if self._closed:
                raise MailboxClosed
            self._items.put(item)

    def take(self, timeout_s: float | None = None) -> T | None:
        """The oldest item. Waits at most ``timeout_s`` seconds, for ever if it is None.

        None when the time is over, or once the mailbox is closed and empty.
        """
        try:
            item = self._items.get(timeout_s != 0, timeout_s)
        except Empty:
            return None
        if isinstance(item, _Closed):
            self._items.put(item)  # for whoever asks again
            return None
        return item

    def take_all(self, timeout_s: float | None = None) -> list[T] | None:
        """Everything in it, oldest first; waits like ``take`` for the first item.

        None once closed and empty; an empty list when the time is over.
        """
        items: list[T] = []
        try:
            item = self._items.get(timeout_s != 0, timeout_s)
            while not isinstance(item, _Closed):
                items.append(item)
                item = self._items.get_nowait()
        except Empty:
            return items
        self._items.put(item)
        return items or None

    def close(self) -> None:
        """No item will follow. What is inside can still be taken. Safe to repeat."""
        with self._putting:
            if not self._closed:
                self._closed = True
                self._items.put(_CLOSED)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed


class NewestCell(Generic[T]):
    """One immutable value, replaced as a whole: a reader sees the newest, never a mixture."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def put(self, value: T) -> None:
        """Replaces the value. Storing one reference is atomic, so no lock is needed."""
        self._value = value

    def get(self) -> T:
        """The newest value."""
        return self._value


class Monitor:
    """A lock with a condition, for a mailbox whose state is more than a queue (the gateway's).

    ``with monitor:`` enters it; ``wait`` and ``wake`` are called inside.
    """

    __slots__ = ("_changed",)

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())

    def __enter__(self) -> Monitor:
        self._changed.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._changed.release()

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Waits until ``ready()``; False when the time is over first."""
        return self._changed.wait_for(ready, timeout_s)

    def wake(self) -> None:
        """Wakes everybody who waits."""
        self._changed.notify_all()
