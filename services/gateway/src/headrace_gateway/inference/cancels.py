"""Cancels on their way to the server: asked for once, tried until they are there.

A client that leaves while the server cannot be reached must still free its engine later.
"""

from __future__ import annotations

from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark
from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import GatewayWire

from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.metrics import GatewayMetrics

log = get_logger(__name__)

MAX_PENDING: Final = 10_000
"""Marks kept for later. Beyond it the oldest goes: its deadline, or the engine's end, frees it."""


class Cancels:
    """Sends marks, and keeps those that could not be sent."""

    def __init__(self, wire: GatewayWire, tasks: Tasks, metrics: GatewayMetrics) -> None:
        self._wire = wire
        self._tasks = tasks
        self._metrics = metrics
        self._pending: dict[tuple[str, int | None], tuple[str, CancelMark]] = {}

    def ask(
        self,
        model: str,
        request: str,
        reason: FinishReason,
        *,
        cause: str,
        choice: int | None = None,
        at: int | None = None,
    ) -> None:
        """Has a mark set, soon. ``at``: generated tokens of ``choice`` to keep."""
        mark = mark_of(reason, choice=choice, at=at)
        self._metrics.cancels.labels(cause).inc()
        self._tasks.spawn(self._send(model, request, mark), name=f"cancel {request}")

    @property
    def pending(self) -> int:
        """Marks that wait for the server."""
        return len(self._pending)

    def retry(self) -> None:
        """Sends again what could not be sent."""
        pending, self._pending = self._pending, {}
        for (request, _), (model, mark) in pending.items():
            self._tasks.spawn(self._send(model, request, mark), name=f"cancel {request}")

    async def _send(self, model: str, request: str, mark: CancelMark) -> None:
        try:
            await self._wire.cancel(model, request, mark)
        except TransportUnavailable:
            key = (request, mark.choice if mark.HasField("choice") else None)
            self._pending[key] = (model, mark)
            if len(self._pending) > MAX_PENDING:
                lost = next(iter(self._pending))
                del self._pending[lost]
                log.warning("cancel.dropped", id=lost[0], limit=MAX_PENDING)


def mark_of(
    reason: FinishReason, *, choice: int | None = None, at: int | None = None
) -> CancelMark:
    """A mark as it travels."""
    mark = CancelMark(reason=reason.value)
    if choice is not None:
        mark.choice = choice
    if at is not None:
        mark.at = at
    return mark
