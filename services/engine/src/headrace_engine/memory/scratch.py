"""Trial: allocator operations that can be undone to any mark, exactly.

Owner    engine thread, during one pass
Writes   ObjectAllocator, and its own log
Never    touches blocks or slots: those change in scheduler.replay alone
Rules    memory.exact-undo, sched.trial-equals-outcome
Next     headrace_engine.scheduler.grant
"""

from __future__ import annotations

from typing import NewType

from headrace_engine.memory.objects import Allocation, ObjectAllocator, ObjectType

Mark = NewType("Mark", int)
"""Length of the log at some moment."""


class Trial:
    """An undo log instead of a copy of the allocator: the cost is that of what is tried.

    What is not undone simply stays, so the outcome of a trial cannot differ from reality.
    """

    __slots__ = ("_log", "_objects")

    def __init__(self, objects: ObjectAllocator) -> None:
        self._objects = objects
        self._log: list[tuple[bool, Allocation]] = []

    def mark(self) -> Mark:
        """A point to come back to."""
        return Mark(len(self._log))

    def alloc(self, type: ObjectType) -> Allocation | None:
        """As ``ObjectAllocator.alloc``, undoable."""
        allocation = self._objects.alloc(type)
        if allocation is not None:
            self._log.append((True, allocation))
        return allocation

    def alloc_many(self, type: ObjectType, count: int) -> list[Allocation]:
        """As ``ObjectAllocator.alloc_many``, undoable."""
        allocations = self._objects.alloc_many(type, count)
        for allocation in allocations:
            self._log.append((True, allocation))
        return allocations

    def free(self, allocation: Allocation) -> None:
        """As ``ObjectAllocator.free``, undoable."""
        self._objects.free(allocation)
        self._log.append((False, allocation))

    def undo_to(self, mark: Mark) -> None:
        """Takes back everything since ``mark``, newest first."""
        while len(self._log) > mark:
            allocated, allocation = self._log.pop()
            if allocated:
                self._objects.free(allocation)
            else:
                self._objects.claim(allocation)
