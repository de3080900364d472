"""Garbage: cyclic garbage is collected when nobody waits for the engine, never inside a pass.

Owner    engine thread; the collector itself is the process's
Writes   the interpreter's collector
Never    collects while something is resident, unless memory demands it
Rules    loop.no-collection-in-a-pass
Next     headrace_engine.loop.validate
"""

from __future__ import annotations

import gc

QUIET_S = 0.2
"""Seconds without work after which a collection is not noticed."""

MAX_YOUNG = 2_000_000
"""Objects made and not freed since the last collection, at which one cannot wait: under 1 GiB."""


class Garbage:
    """Takes the interpreter's collector over, from ``start`` to ``stop``.

    For processes that belong to one engine: whatever else runs in it is collected at the same times.
    """

    __slots__ = ("_max_young", "collections")

    def __init__(self, max_young: int = MAX_YOUNG) -> None:
        self._max_young = max_young
        self.collections = 0
        """Since the start."""

    def start(self) -> None:
        """What start-up left alive is never looked at again; automatic collection ends."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def stop(self) -> None:
        """Everything as it was."""
        gc.unfreeze()
        gc.enable()

    def owed(self) -> bool:
        """Whether there may be anything to collect."""
        return gc.get_count()[0] > gc.get_threshold()[0]

    def pressing(self) -> bool:
        """Whether it cannot wait for a quiet moment."""
        return gc.get_count()[0] > self._max_young

    def collect(self) -> None:
        """A full collection. It takes as long as there are objects."""
        gc.collect()
        self.collections += 1
