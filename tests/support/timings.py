"""How long things took, for the end of a run."""

from __future__ import annotations

from typing import Protocol


class Timings(Protocol):
    """Notes how long something took. It is printed when the run ends; no test depends on it."""

    def __call__(self, what: str, seconds: float) -> None: ...
