"""Pace: how large a prefill chunk may be so that a step stays below its target.

Owner    engine thread
Writes   its own few numbers
Never    reads a clock: hand-overs and completions come with their times, so a replay has the same
Rules    sched.step-target
Next     headrace_engine.scheduler.order

The model is a step of ``base + tokens * cost``. The base comes from steps that only decode, the cost
from the newest steps that did not: it grows with the context, and a chunk later it has hardly changed.
"""

from __future__ import annotations

from collections import deque

MARGIN = 0.9
"""Share of the target that is planned for."""

GROWTH = 2
"""A chunk is at most so many times the newest one whose time is known, or one size of steps more."""


class Pace:
    """Measures steps; proposes the next chunk."""

    __slots__ = ("_base_s", "_done_s", "_flight", "_largest", "_measured", "_smallest", "_step_tokens",
                 "_target_s", "_token_s")  # fmt: skip

    def __init__(
        self, target_s: float, *, smallest: int, largest: int, step_tokens: int = 1
    ) -> None:
        """``smallest`` and ``largest`` in tokens: what settings allow. Steps are planned to fill a
        multiple of ``step_tokens``, so that twice a chunk may be cut to that very chunk again."""
        self._target_s = target_s
        self._smallest = smallest
        self._largest = largest
        self._step_tokens = step_tokens
        self._base_s = 0.0
        self._token_s: float | None = None
        self._measured = 0
        """Tokens of known context in the newest step that had any."""
        self._flight: deque[tuple[float, int]] = deque()
        """(time, tokens of known context) of each batch that has not come back."""
        self._done_s = 0.0

    def handed_over(self, now_s: float, tokens: int) -> None:
        """A batch begins, or queues behind the one before; ``tokens`` are of known context."""
        self._flight.append((now_s, tokens))

    def completed(self, now_s: float) -> None:
        """The oldest batch is back: the device had it since the one before it came back."""
        handed_s, tokens = self._flight.popleft()
        seconds = max(0.0, now_s - max(handed_s, self._done_s))
        self._done_s = now_s
        if not tokens:
            # Towards the fast ones: a step that was held up says nothing of the next.
            slower = seconds > self._base_s > 0
            self._base_s += (seconds - self._base_s) / 8 if slower else seconds - self._base_s
            return
        self._base_s = min(self._base_s, seconds)
        cost_s = (seconds - self._base_s) / tokens
        mean_s = cost_s if self._token_s is None else (cost_s + self._token_s) / 2
        self._token_s = max(cost_s, mean_s)
        self._measured = tokens

    def chunk_tokens(self) -> int:
        """Tokens of known context for the next step. Small until something was measured."""
        if self._token_s is None:
            return self._smallest
        grown = max(GROWTH * self._measured, self._measured + self._step_tokens)
        most = min(self._largest, grown)
        room_s = MARGIN * self._target_s - self._base_s
        if self._token_s * most > room_s:
            most = int(room_s / self._token_s)
        return min(max(most, self._smallest), self._largest)

    def state(self) -> list[float | None]:
        """Everything that ``chunk_tokens`` depends on, for snapshots."""
        flight = [number for batch in self._flight for number in batch]
        return [self._base_s, self._token_s, self._measured, self._done_s, *flight]

    def restore(self, state: list[float | None]) -> None:
        """Takes over what ``state`` gave. Raises ``ValueError`` where that cannot be."""
        base_s, token_s, measured, done_s, *flight = state
        if base_s is None or measured is None or done_s is None or len(flight) % 2:
            raise ValueError("the state of a pace is not whole")
        self._base_s, self._token_s, self._done_s = base_s, token_s, done_s
        self._measured = int(measured)
        self._flight.clear()
        for handed_s, tokens in zip(flight[::2], flight[1::2], strict=True):
            if handed_s is None or tokens is None:
                raise ValueError("the state of a pace is not whole")
            self._flight.append((handed_s, int(tokens)))
