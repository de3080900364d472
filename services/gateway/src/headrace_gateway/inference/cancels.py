"""Cancels on their way to the server: asked for once, tried until they are there.

A client that leaves while the server cannot be reached must still free its engine later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark
from headrace_kit.log import get_logger
from headrace_transport.errors import CommandFailed, TransportUnavailable
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
        self._sending: dict[str, asyncio.Event] = {}
        """By request: set once its newest mark was sent, or put off."""

    def ask(
        self,
        model: str,
        request: str,
        reason: FinishReason,
        *,
        cause: str,
        choice: int | None = None,
    ) -> None:
        """Has a mark set, soon."""
        mark = mark_of(reason, choice=choice)
        self._metrics.cancels.labels(cause).inc()
        self._spawn(model, request, mark)

    async def sent(self, requests: Iterable[str], *, timeout_s: float) -> None:
        """Waits until the marks of these requests are on the server, but not for long."""
        waited = [self._sending[request] for request in requests if request in self._sending]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for each in waited:
                    await each.wait()

    @property
    def pending(self) -> int:
        """Marks that wait for the server."""
        return len(self._pending)

    def retry(self) -> None:
        """Sends again what could not be sent."""
        pending, self._pending = self._pending, {}
        for (request, _), (model, mark) in pending.items():
            self._spawn(model, request, mark)

    def _spawn(self, model: str, request: str, mark: CancelMark) -> None:
        sending = self._sending[request] = asyncio.Event()
        self._tasks.spawn(self._send(model, request, mark, sending), name=f"cancel {request}")

    async def _send(
        self, model: str, request: str, mark: CancelMark, sending: asyncio.Event
    ) -> None:
        try:
            await self._wire.cancel(model, request, mark)
        except TransportUnavailable:
            key = (request, mark.choice if mark.HasField("choice") else None)
            self._pending[key] = (model, mark)
            if len(self._pending) > MAX_PENDING:
                lost = next(iter(self._pending))
                del self._pending[lost]
                log.warning("cancel.dropped", id=lost[0], limit=MAX_PENDING)
        except CommandFailed as error:  # its state is damaged: its deadline, or its engine, ends it
            log.error("cancel.refused", id=request, reason=str(error))
        finally:
            sending.set()
            if self._sending.get(request) is sending:
                del self._sending[request]


def mark_of(reason: FinishReason, *, choice: int | None = None) -> CancelMark:
    """A mark as it travels."""
    mark = CancelMark(reason=reason.value)
    if choice is not None:
        mark.choice = choice
    return mark
