"""Held: the requests this engine answers for, from claim to settlement, and how many more it may claim.

Owner    io thread
Writes   Held, Holdings
Never    awaits
Rules    request.one-terminal-status, intake.credit
Next     headrace_engine.intake.book
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace_contracts.pb.queue_pb2 import RequestRecord, RowFinish
from headrace_kit.traces import trace_id_of

from headrace_engine.state.outputs import RowLogprobs, SequenceUsage
from headrace_engine.state.request import RequestHandle


@dataclass(slots=True, eq=False)
class Held:
    """One claimed request.

    Invariants
        choices in ``ends`` get no further row
        len(ends) == choices  implies  nothing of it is left to publish
    """

    record: RequestRecord
    choices: int
    """``record.n``, or 1 for a record whose ``n`` is refused."""
    attempt: int
    handle: RequestHandle
    claimed_s: float
    """Monotonic."""
    gateway: str
    """Process that its rows go to now."""
    slot: int
    """Of choice 0 there."""
    pushed: bool = False
    """The engine was given it."""
    started: bool = False
    """The engine has told that a pass ran some of it."""
    spared: bool = False
    """The engine failed, and not by this one: it is handed back as it stands."""
    ends: dict[int, RowFinish] = field(default_factory=dict[int, RowFinish])
    """Terminal status of each choice whose terminal row is published. ``row`` is the choice."""
    ended_before: frozenset[int] = frozenset()
    """Choices that an earlier attempt ended."""
    usages: dict[int, SequenceUsage] = field(default_factory=dict[int, SequenceUsage])
    unlogged_ends: set[int] = field(default_factory=set[int])
    """Choices whose end the resume log lacks."""
    unlogged_logprobs: dict[int, list[RowLogprobs]] = field(
        default_factory=dict[int, list[RowLogprobs]]
    )
    log_lost: bool = False
    """The log holds less than was written to it; it is not appended to again."""
    logged_prompt: bool = False
    """The log's first entry, which names the prompt's length, is written."""

    @property
    def id(self) -> str:
        """The request's id."""
        return self.record.id

    @property
    def trace_id(self) -> str | None:
        """The trace it belongs to, for log lines."""
        return trace_id_of(self.record.traceparent)

    @property
    def over(self) -> bool:
        """Whether every choice has its terminal status."""
        return len(self.ends) == self.choices


class Holdings:
    """Every request held, by id and by handle, and the engine's load.

    A request that is let go may still occupy the engine for some passes: load falls when the
    engine says so, not when the request is forgotten.
    """

    def __init__(self, *, slots: int, max_waiting: int) -> None:
        """``slots`` sequences can be resident, ``max_waiting`` may wait inside besides."""
        self._room = slots + max_waiting
        self._by_id: dict[str, Held] = {}
        self._by_handle: dict[RequestHandle, Held] = {}
        self._load: dict[RequestHandle, int] = {}
        self._resident = 0
        self._next = 1

    def next_handle(self) -> RequestHandle:
        """A handle that was never used."""
        handle = RequestHandle(self._next)
        self._next += 1
        return handle

    def add(self, held: Held) -> None:
        """Takes a request in. Its id must not be held."""
        assert held.id not in self._by_id
        self._by_id[held.id] = held
        self._by_handle[held.handle] = held

    def entered(self, handle: RequestHandle, sequences: int) -> None:
        """The engine took ``sequences`` of it."""
        self._load[handle] = sequences
        self._resident += sequences

    def left(self, handle: RequestHandle) -> None:
        """One sequence of it has ended in the engine."""
        remaining = self._load[handle] - 1
        self._resident -= 1
        if remaining:
            self._load[handle] = remaining
        else:
            del self._load[handle]

    def remove(self, held: Held) -> None:
        """Forgets a request that was settled, lost or handed back."""
        del self._by_id[held.id]
        del self._by_handle[held.handle]

    def get(self, request: str) -> Held | None:
        """The request of this id."""
        return self._by_id.get(request)

    def of(self, handle: RequestHandle) -> Held | None:
        """The request of this handle."""
        return self._by_handle.get(handle)

    def holds(self, held: Held) -> bool:
        """Whether it was not forgotten meanwhile."""
        return self._by_handle.get(held.handle) is held

    def attempts(self) -> Mapping[str, int]:
        """Attempt of every request held: what a renewal names."""
        return {request: held.attempt for request, held in self._by_id.items()}

    def __iter__(self) -> Iterator[Held]:
        """In the order of their claims."""
        return iter(tuple(self._by_handle.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def resident(self) -> int:
        """Sequences inside the engine, waiting ones included."""
        return self._resident

    @property
    def credit(self) -> int:
        """Requests that may be claimed now; not above zero when the engine is full.

        Held requests that only await their settlement do not count: they use no memory of
        the engine, and when the server is away nothing is claimed in any case.
        """
        return self._room - self._resident
