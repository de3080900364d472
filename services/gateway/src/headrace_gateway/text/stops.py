"""Stop strings: found across tokens, and never shown in part.

The match that is *complete* first wins; of those that end at one character, the longest. So
the outcome depends on the text alone, not on how it was cut into tokens or deltas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopScan:
    """What came of some more text."""

    text: str
    """Safe to show now."""
    stopped: bool


class StopFinder:
    """Looks for stop strings in a text that arrives in pieces.

    Invariants
        what is shown, joined, ends where the first counting match begins (or ends, when the
        match itself is to be shown)
        what is held back is the longest end of the text that a stop string begins with
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """``include``: the match itself is shown. Raises ValueError for an empty stop string."""
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops)]
        self._include = include
        self._held = ""
        self._stopped = False

    def push(self, text: str, *, counts: bool = True) -> StopScan:
        """Takes more text. ``counts`` false: a match that ends in it does not stop."""
        if self._stopped:
            return StopScan("", stopped=True)
        pending = self._held + text
        for i, char in enumerate(text, start=len(self._held) + 1):
            matched = max([pattern.step(char) for pattern in self._patterns])
            if matched and counts:
                self._stopped = True
                self._held = ""
                return StopScan(pending[: i if self._include else i - matched], stopped=True)
        held = max(pattern.length for pattern in self._patterns)
        shown = len(pending) - held
        self._held = pending[shown:]
        return StopScan(pending[:shown], stopped=False)

    def flush(self) -> str:
        """The end of the text came without a match: what was held back."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """Follows one stop string (Knuth, Morris and Pratt): constant time a character."""

    __slots__ = ("_fallback", "_stop", "length")

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._fallback = _borders(stop)
        self.length = 0
        """Characters of the stop string that the text ends with now; never all of them."""

    def step(self, char: str) -> int:
        """Takes one character. Returns the stop string's length if it is complete, else 0."""
        length = self.length
        while length and char != self._stop[length]:
            length = self._fallback[length - 1]
        if char == self._stop[length]:
            length += 1
        complete = length == len(self._stop)
        self.length = self._fallback[length - 1] if complete else length
        return length if complete else 0


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = borders[length - 1]
        if stop[i] == stop[length]:
            length += 1
        borders[i] = length
    return borders
