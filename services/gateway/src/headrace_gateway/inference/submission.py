"""From a planned call to its queue: every record of it, or none.

Next: headrace_gateway.inference.inbox
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts.pb.queue_pb2 import RequestRecord
from headrace_kit.clock import Clock
from headrace_transport import errors as transport
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import (
    BackendUnavailable,
    Conflict,
    GatewayError,
    InvalidRequest,
    QueueFull,
    RateLimitExceeded,
    transport_errors,
)
from headrace_gateway.inference.book import Book
from headrace_gateway.inference.calls import Caller
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.receipt import Receipts
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import Session
from headrace_gateway.metrics import GatewayMetrics


class Submission:
    """Queues calls, and enters those that are queued into the book."""

    def __init__(
        self,
        wire: GatewayWire,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        book: Book,
        inbox: Inbox,
        receipts: Receipts,
        max_queued: int,
    ) -> None:
        """``max_queued``: requests of a model that may wait."""
        self._wire = wire
        self._clock = clock
        self._metrics = metrics
        self._book = book
        self._inbox = inbox
        self._receipts = receipts
        self._max_queued = max_queued

    async def submit(self, call: OpenCall, caller: Caller) -> None:
        """Queues every record, or none: what was queued before a refusal is cancelled."""
        sent: list[Session] = []
        try:
            for session in call.sessions:
                self._inbox.open(session)
                sent.append(session)
                await self._queue(session, caller, first=session is call.sessions[0])
                session.submitted = True
        except BaseException as error:
            # A plain refusal says that it is not queued; after anything else it may be.
            doubtful = not isinstance(error, GatewayError) or isinstance(error, BackendUnavailable)
            for session in sent:
                self._inbox.close(session)
                if session.submitted or doubtful:
                    self._book.cancel_record(session, "failure")
            raise
        self._metrics.started.labels(call.model).inc()
        self._book.enter(call)

    async def _queue(self, session: Session, caller: Caller, *, first: bool) -> None:
        bound = caller.max_concurrency if first else None
        try:
            try:
                await self._put(session.record, bound)
            except transport.ConcurrencyExceeded:
                # Who has an answer may ask again, also before its engine has settled it.
                over = self._book.answered(caller.tenant, caller.key_id)
                if not over:
                    raise
                await self._put(session.record, bound, over)
        except transport.QueueFull as full:
            rate = self._book.rate(session.record.model)
            retry_s = rate.advise(self._clock.monotonic())
            raise QueueFull(depth=full.depth, limit=full.limit, retry_after_s=retry_s) from full
        except transport.ConcurrencyExceeded as many:
            raise RateLimitExceeded(
                f"This key has {many.running} requests running, its limit is {many.limit}.",
                retry_after_s=self._receipts.advise_s(many.running),
            ) from many
        except transport.RequestConflict as taken:
            raise Conflict("A request with this id exists.", param="id") from taken
        except transport.RecordRejected as refused:
            raise InvalidRequest(str(refused)) from refused

    async def _put(
        self, record: RequestRecord, max_concurrency: int | None, over: Sequence[str] = ()
    ) -> None:
        with transport_errors():
            await self._wire.submit(
                record,
                max_queued=self._max_queued,
                max_concurrency=max_concurrency,
                over=over,
            )
