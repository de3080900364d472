"""Of many events that are alike, which are told: the first in a minute, with the number of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

TELL_EVERY_S: Final = 60.0


class Telling:
    """Counts events by kind. One event loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._told_at: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def due(self, kind: str) -> int | None:
        """One more. How many there were since the last that was told, if this one is; else None."""
        count, now = self._silent.get(kind, 0) + 1, self._now_s()
        told_at = self._told_at.get(kind)
        if told_at is not None and now - told_at < TELL_EVERY_S:
            self._silent[kind] = count
            return None
        self._told_at[kind], self._silent[kind] = now, 0
        return count
