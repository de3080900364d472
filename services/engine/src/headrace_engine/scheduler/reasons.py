"""Reasons: why a waiting sequence did not run. Exactly one per sequence and pass.

Owner    engine thread
Writes   its own book
Never    costs more than the sequences that were looked at
Rules    reasons.exactly-one
Next     headrace_engine.scheduler.policy
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """What a waiting sequence waits for."""

    PRIORITY = "priority"
    """Another waiting sequence goes first and is blocked, or the pass looked at enough. Time at the
    engine's door counts as this too: those inside go first."""
    BATCH_ROWS = "batch_rows"
    """Every slot is taken."""
    TOKEN_BUDGET = "token_budget"
    """The batch's tokens are spent."""
    BLOCKS = "blocks"
    """Memory: ``Waiting.detail`` is the number of blocks it is short of."""
    PRODUCER = "producer"
    """Another computes a block it shares: ``Waiting.detail`` is that sequence's number."""
    IN_FLIGHT = "in_flight"
    """It lost its place, and its last batch has not come back."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason of one sequence in one pass."""

    reason: Reason
    detail: int = 0


_BEHIND = Waiting(Reason.PRIORITY)


class ReasonBook:
    """Reasons of the newest pass, and how long each sequence had each reason.

    Only sequences that the pass looked at are written; every other waiting one has PRIORITY.
    Durations of a sequence sum to the time from ``enter`` to ``leave``.
    """

    __slots__ = ("_named", "_since", "_spent")

    def __init__(self) -> None:
        self._named: dict[int, Waiting] = {}
        self._since: dict[int, float] = {}
        self._spent: dict[int, dict[Reason, float]] = {}

    def enter(self, number: int, now_s: float) -> None:
        """A sequence begins to wait."""
        self._since[number] = now_s
        self._spent.setdefault(number, {})

    def begin_pass(self, now_s: float) -> None:
        """Everybody is behind somebody until the pass says otherwise."""
        for number in self._named:
            self._account(number, now_s)
        self._named = {}

    def name(self, number: int, reason: Reason, now_s: float, detail: int = 0) -> None:
        """The pass looked at this sequence; this is why it waits."""
        assert number not in self._named, "two reasons in one pass"
        self._account(number, now_s)
        self._named[number] = Waiting(reason, detail)

    def leave(self, number: int, now_s: float) -> Mapping[Reason, float]:
        """The sequence runs or has ended. Returns seconds by reason so far."""
        self._account(number, now_s)
        self._named.pop(number, None)
        self._since.pop(number, None)
        return self._spent.get(number, {})

    def forget(self, number: int) -> None:
        """The sequence is gone."""
        self._named.pop(number, None)
        self._since.pop(number, None)
        self._spent.pop(number, None)

    def of(self, number: int) -> Waiting | None:
        """Why it waits; None for one that does not."""
        return self._named.get(number, _BEHIND) if number in self._since else None

    @property
    def named(self) -> Mapping[int, Waiting]:
        """Those that the newest pass looked at, by number; every other one has PRIORITY."""
        return self._named

    def spent(self, number: int, now_s: float) -> dict[Reason, float]:
        """Seconds by reason until now. They sum to the time that it has waited."""
        spent = dict(self._spent.get(number, {}))
        since = self._since.get(number)
        if since is not None and now_s > since:
            reason = self._named.get(number, _BEHIND).reason
            spent[reason] = spent.get(reason, 0.0) + now_s - since
        return spent

    def counts(self) -> dict[str, int]:
        """Waiting sequences by reason; only reasons that somebody has."""
        counts: dict[str, int] = {}
        for waiting in self._named.values():
            counts[waiting.reason] = counts.get(waiting.reason, 0) + 1
        behind = len(self._since) - len(self._named)
        if behind:
            counts[Reason.PRIORITY] = counts.get(Reason.PRIORITY, 0) + behind
        return counts

    def _account(self, number: int, now_s: float) -> None:
        since = self._since.get(number)
        if since is None:
            return
        spent = self._spent[number]
        reason = self._named.get(number, _BEHIND).reason
        spent[reason] = spent.get(reason, 0.0) + now_s - since
        self._since[number] = now_s
