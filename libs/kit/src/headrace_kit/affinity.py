"""Which thread owns an object: the check that stands where other code has a lock."""

from __future__ import annotations

import threading

from headrace_kit.errors import AffinityError


class Affinity:
    """One owning thread, bound once, checked at public entries: ``assert affinity.check()``.

    Before ``bind`` nobody owns the object yet and every check passes, so that it can be built
    on one thread and given to another, and used in tests without a thread.
    """

    __slots__ = ("_name", "_owner", "_owner_name")

    def __init__(self, name: str) -> None:
        """``name`` is the thread's role, e.g. ``engine``; it appears in the error."""
        self._name = name
        self._owner: int | None = None
        self._owner_name = ""

    def bind(self) -> None:
        """Makes the calling thread the owner. Binding again on another thread is refused."""
        me = threading.get_ident()
        if self._owner is not None and self._owner != me:
            raise AffinityError(
                f"{self._name!r} is owned by thread {self._owner_name!r}; "
                f"{threading.current_thread().name!r} tried to take it"
            )
        self._owner = me
        self._owner_name = threading.current_thread().name

    def release(self) -> None:
        """Gives the object up, so that another thread may bind. Only the owner may."""
        self.check()
        self._owner = None

    def check(self) -> bool:
        """True on the owning thread, or before ``bind``; raises ``AffinityError`` elsewhere."""
        if self._owner is None or self._owner == threading.get_ident():
            return True
        raise AffinityError(
            f"{self._name!r} belongs to thread {self._owner_name!r}; "
            f"touched by {threading.current_thread().name!r}"
        )
