"""Desk: what happens to a held request apart from its rows: taken in, cancelled, let go, settled.

Owner    io thread
Writes   Holdings, RowBook
Never    awaits
Rules    request.one-terminal-status, lease.lost-is-silent
Next     headrace_engine.intake.publisher
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark
from headrace_kit.log import get_logger
from headrace_transport.endings import reason_of

from headrace_engine.intake.book import RowBook
from headrace_engine.intake.columns import row_key
from headrace_engine.intake.held import Held, Holdings
from headrace_engine.intake.spans import Spans
from headrace_engine.metrics import EngineMetrics, LetGo
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle

log = get_logger(__name__)


class IntakeDoor(Protocol):
    """The engine's door as io sees it. ``EngineGateway`` has more for others."""

    def push(self, request: Request) -> None:
        """Hands a request over; raises ``EngineDraining`` once drained or closed."""
        ...

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request in whatever state; a no-op for one that has ended or is unknown."""
        ...


class Desk:
    """Holdings, book and door, changed together."""

    def __init__(
        self,
        *,
        door: IntakeDoor,
        holdings: Holdings,
        book: RowBook,
        metrics: EngineMetrics,
        spans: Spans,
    ) -> None:
        self._door = door
        self._spans = spans
        self.holdings = holdings
        self.book = book
        self._metrics = metrics
        self.room = asyncio.Event()
        """Set whenever load fell or a request was forgotten."""

    def open(self, held: Held, lengths: Sequence[int]) -> None:
        """Takes a claimed request in; ``lengths`` tokens of its choices were delivered before."""
        self.holdings.add(held)
        self.book.add(held, self._keys(held), lengths)
        self._metrics.claimed.inc()

    def push(self, held: Held, request: Request) -> None:
        """Hands an opened request to the engine. Raises ``EngineDraining``."""
        self._door.push(request)
        held.pushed = True
        self.holdings.entered(held.handle, request.n - len(request.finished))

    def cancel_marked(self, request: str, marks: Sequence[CancelMark]) -> None:
        """Ends a request, or choices of it, as its marks say. Marks come again; so may this."""
        held = self.holdings.get(request)
        if held is None:
            return
        for mark in marks:
            choice = mark.choice if mark.HasField("choice") else None
            if choice not in held.ends:
                self._door.cancel(Cancel(held.handle, reason_of(mark), choice))

    def let_go(self, held: Held, why: LetGo) -> None:
        """Forgets a request that has not ended, and stops the engine's work on it, silently."""
        if not self.holdings.holds(held):
            return
        self._forget(held)
        self._door.cancel(Cancel(held.handle, FinishReason.CANCELLED))
        self._tell_let_go(held, why)
        self._spans.let_go(held, why)

    def settled(self, held: Held, *, ours: bool) -> None:
        """Forgets a request that has ended and whose lease is gone."""
        if not self.holdings.holds(held):
            return
        self._forget(held)
        if not ours:
            self._tell_let_go(held, "lost")
        self._spans.settled(held, ours=ours)

    def seen(self, outputs: PassOutputs) -> None:
        """Notes what one pass started and ended, before its rows are published."""
        for start in outputs.starts:
            held = self.holdings.of(_handle(outputs, start.row))
            if held is not None:
                held.started = True
                self._metrics.queue_time.observe(start.queue_s)
        for end in outputs.ends:
            self.holdings.left(_handle(outputs, end.row))
        if outputs.ends:
            self.room.set()

    def _tell_let_go(self, held: Held, why: LetGo) -> None:
        self._metrics.let_go.labels(why).inc()
        log.info(
            "request.let_go", id=held.id, attempt=held.attempt, why=why, trace_id=held.trace_id
        )

    def _forget(self, held: Held) -> None:
        self.book.remove(self._keys(held))
        self.holdings.remove(held)
        self.room.set()

    def _keys(self, held: Held) -> list[int]:
        return [row_key(held.handle, choice) for choice in range(held.choices)]


def _handle(outputs: PassOutputs, row: int) -> RequestHandle:
    return RequestHandle(int(outputs.handles[row]))
