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
    """Another waiting sequence goes first and is blocked, or the pass looked at enough, while there
    are rows and tokens left. Time at the engine's door counts as this too: those inside go first."""
    BATCH_ROWS = "batch_rows"
    """Every slot is taken."""
    TOKEN_BUDGET = "token_budget"
    """The batch's tokens are spent, or what is left of them reaches no boundary."""
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
_ORDER = tuple(Reason)

Seconds = tuple[float, ...]
"""By reason, in the order of ``Reason``."""


class ReasonBook:
    """Reasons of the newest pass, and how long each sequence had each reason.

    Only sequences that the pass looked at are written; every other waiting one has the reason that
    ``behind`` gave for all of them: what that costs does not depend on how many there are.
    Durations of a sequence sum to the time from ``enter`` to ``leave``.

    Invariants
        a waiting sequence is in exactly one of ``_named`` and ``_marks``
    """

    __slots__ = ("_behind", "_behind_since", "_marks", "_named", "_since", "_spent", "_totals")

    def __init__(self) -> None:
        self._named: dict[int, Waiting] = {}
        self._since: dict[int, float] = {}
        """Of those named: from when on their reason is not accounted yet."""
        self._behind = _BEHIND
        """Of those that are not named."""
        self._behind_since = 0.0
        self._totals: Seconds = (0.0,) * len(_ORDER)
        """How long somebody who was never named had each reason, up to ``_behind_since``."""
        self._marks: dict[int, Seconds] = {}
        """Of those not named: what ``_totals`` were when they began to be so."""
        self._spent: dict[int, dict[Reason, float]] = {}

    def enter(self, number: int, now_s: float, since_s: float | None = None) -> None:
        """A sequence begins to wait; if it waited elsewhere ``since_s``, others went first there."""
        spent = self._spent.setdefault(number, {})
        if since_s is not None and since_s < now_s:
            _add(spent, Reason.PRIORITY, now_s - since_s)
        self._marks[number] = self._totals_at(now_s)

    def begin_pass(self, now_s: float) -> None:
        """Everybody is behind somebody until the pass says otherwise."""
        totals = self._totals = self._totals_at(now_s)
        self._behind, self._behind_since = _BEHIND, now_s
        for number, waiting in self._named.items():
            _add(self._spent[number], waiting.reason, now_s - self._since.pop(number))
            self._marks[number] = totals
        self._named = {}

    def name(self, number: int, reason: Reason, now_s: float, detail: int = 0) -> None:
        """The pass looked at this sequence; this is why it waits."""
        assert number not in self._named, "two reasons in one pass"
        self._account(number, now_s)
        del self._marks[number]
        self._since[number] = now_s
        self._named[number] = Waiting(reason, detail)

    def behind(self, reason: Reason) -> None:
        """What everybody waits for whom this pass did not look at: nobody gets any of it."""
        self._behind = Waiting(reason)

    def leave(self, number: int, now_s: float) -> Mapping[Reason, float]:
        """The sequence runs or has ended. Returns seconds by reason so far."""
        spent = self._spent.get(number)
        if spent is None:
            return {}
        self._add_open(spent, number, now_s)
        self._drop(number)
        return spent

    def forget(self, number: int) -> None:
        """The sequence is gone."""
        self._drop(number)
        self._spent.pop(number, None)

    def of(self, number: int) -> Waiting | None:
        """Why it waits; None for one that does not."""
        if number in self._marks:
            return self._behind
        return self._named.get(number)

    @property
    def named(self) -> Mapping[int, Waiting]:
        """Those that the newest pass looked at, by number."""
        return self._named

    @property
    def others(self) -> Reason:
        """Why every other one waits."""
        return self._behind.reason

    def spent(self, number: int, now_s: float) -> dict[Reason, float]:
        """Seconds by reason until now. They sum to the time that it has waited."""
        spent = dict(self._spent.get(number, {}))
        self._add_open(spent, number, now_s)
        return spent

    def counts(self) -> dict[str, int]:
        """Waiting sequences by reason; only reasons that somebody has."""
        counts: dict[str, int] = {}
        for waiting in self._named.values():
            counts[waiting.reason] = counts.get(waiting.reason, 0) + 1
        if self._marks:
            others = self._behind.reason
            counts[others] = counts.get(others, 0) + len(self._marks)
        return counts

    def _totals_at(self, now_s: float) -> Seconds:
        totals = self._totals
        if now_s == self._behind_since:
            return totals
        at = _ORDER.index(self._behind.reason)
        return (*totals[:at], totals[at] + (now_s - self._behind_since), *totals[at + 1 :])

    def _account(self, number: int, now_s: float) -> None:
        """Adds what is open to what is written."""
        spent = self._spent.get(number)
        if spent is not None:
            self._add_open(spent, number, now_s)

    def _add_open(self, spent: dict[Reason, float], number: int, now_s: float) -> None:
        mark = self._marks.get(number)
        if mark is not None:
            totals = self._totals_at(now_s)
            if totals == mark:
                return  # most begin in the pass in which they came
            for reason, total, before in zip(_ORDER, totals, mark, strict=True):
                _add(spent, reason, total - before)
        elif (since_s := self._since.get(number)) is not None:
            _add(spent, self._named[number].reason, now_s - since_s)

    def _drop(self, number: int) -> None:
        if self._marks.pop(number, None) is None and self._named.pop(number, None) is not None:
            del self._since[number]


def _add(spent: dict[Reason, float], reason: Reason, seconds: float) -> None:
    if seconds > 0:
        spent[reason] = spent.get(reason, 0.0) + seconds
