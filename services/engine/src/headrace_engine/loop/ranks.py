"""Ranks: several engines that pass in step. Rank 0 alone talks to the door.

Owner    each engine thread its own member; a group is shared
Writes   nothing of an engine
Never    decides; polls
Rules    ranks.one-door, ranks.same-plans, ranks.same-passes, ranks.idle-sleeps
Next     headrace_engine.loop.thread

In a *tensor* group every rank gets every request, and decides the same. In a *data* group each request
belongs to one rank, and a rank without work passes with an empty batch, since the devices meet in each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from headrace_engine.errors import EngineFailed
from headrace_engine.state.inbound import Inbound
from headrace_engine.state.mailbox import Monitor
from headrace_engine.state.request import Request

GOODBYE_S = 10.0
"""Seconds that rank 0 waits for the others after a failure: one may be stuck in its device."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a pass begins with: the same on every rank."""

    inbound: Inbound
    now_s: float
    """Rank 0's clock: time decides as well, so there is one."""
    completed_s: tuple[float, ...]
    """When the batches came back that did so since the last turn; on rank 0's clock too."""
    checked: list[Request]
    """Those of ``inbound`` that can run."""


class Ranks(Protocol):
    """One rank's way to the others. Every call meets the same call of every other rank."""

    @property
    def leads(self) -> bool:
        """Whether this rank talks to the door."""
        ...

    @property
    def tells(self) -> bool:
        """Whether what this rank says is not said by another."""
        ...

    @property
    def replicas(self) -> int:
        """Ranks that hold requests of their own."""
        ...

    def takes(self, request: Request) -> bool:
        """Whether the request is this rank's."""
        ...

    def barrier(self) -> None:
        """Sleeps until every rank is here. Called when the group is empty, and at the end."""
        ...

    def broadcast(self, turn: Turn | None) -> Turn:
        """Rank 0's turn; the others bring None."""
        ...

    def reduce_active(self, active: int) -> int:
        """The sum over the replicas."""
        ...

    def abandon(self) -> None:
        """This rank will not come again: the others raise ``EngineFailed`` where they would wait.

        Rank 0 returns when the others have done the same, since it closes the door behind all.
        """
        ...


class SingleRank:
    """An engine that is alone."""

    leads = True
    tells = True
    replicas = 1

    def takes(self, request: Request) -> bool:
        """All are."""
        return True

    def barrier(self) -> None:
        """Nobody to wait for."""

    def broadcast(self, turn: Turn | None) -> Turn:
        """Its own."""
        assert turn is not None
        return turn

    def reduce_active(self, active: int) -> int:
        """Its own."""
        return active

    def abandon(self) -> None:
        """Nobody to tell."""


class RankGroup:
    """Where the ranks of one process meet: all bring a value, and all get all values."""

    def __init__(self, size: int, kind: Literal["tensor", "data"]) -> None:
        """``size`` ranks, each on a thread of its own."""
        if size < 1:
            raise ValueError(f"a group of {size} ranks")
        self.size = size
        self.kind = kind
        self._monitor = Monitor()
        self._brought: dict[int, Any] = {}
        self._met: list[Any] = []
        self.meetings = 0
        """That have taken place."""
        self._gone: set[int] = set()

    def members(self) -> list[ThreadRank]:
        """One for each rank, in order."""
        return [ThreadRank(self, rank) for rank in range(self.size)]

    @property
    def waiting(self) -> int:
        """Ranks that wait for the others."""
        return len(self._brought)

    def meet(self, rank: int, value: Any) -> list[Any]:
        """Waits for every rank, without polling. Values in order of ranks."""
        with self._monitor as monitor:
            meeting = self.meetings
            assert rank not in self._brought, "a rank twice in one meeting"
            self._brought[rank] = value
            if len(self._brought) == self.size and not self._gone:
                self._met = [self._brought[r] for r in range(self.size)]
                self._brought = {}
                self.meetings += 1
                monitor.wake()
            else:
                monitor.wait(lambda: self.meetings > meeting or bool(self._gone))
            if self.meetings == meeting:
                raise EngineFailed("another rank of the group has failed")
            return self._met

    def leave(self, rank: int) -> None:
        """No meeting will take place any more. Rank 0 waits for the others to leave."""
        with self._monitor as monitor:
            self._gone.add(rank)
            monitor.wake()
            if rank == 0:
                monitor.wait(lambda: len(self._gone) == self.size, GOODBYE_S)


class ThreadRank:
    """A rank of a ``RankGroup``. Its door may be the group's only one: rank 0 alone pops."""

    def __init__(self, group: RankGroup, rank: int) -> None:
        self._group = group
        self._rank = rank
        self._data = group.kind == "data"

    @property
    def leads(self) -> bool:
        """See Ranks."""
        return self._rank == 0

    @property
    def tells(self) -> bool:
        """See Ranks."""
        return self._data or self._rank == 0

    @property
    def replicas(self) -> int:
        """See Ranks."""
        return self._group.size if self._data else 1

    def takes(self, request: Request) -> bool:
        """Handles count up, so the ranks of a data group take turns."""
        return request.handle % self.replicas == (self._rank if self._data else 0)

    def barrier(self) -> None:
        """See Ranks."""
        self._group.meet(self._rank, None)

    def broadcast(self, turn: Turn | None) -> Turn:
        """See Ranks."""
        turn = self._group.meet(self._rank, turn)[0]
        assert turn is not None
        return turn

    def reduce_active(self, active: int) -> int:
        """See Ranks. Ranks of a tensor group have the same, and need not ask."""
        return sum(self._group.meet(self._rank, active)) if self._data else active

    def abandon(self) -> None:
        """See Ranks."""
        self._group.leave(self._rank)
