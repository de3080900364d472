"""The call of a stream that is read again: open here, taken back from elsewhere, or taken up.

Next: headrace_gateway.inference.resume
"""

from __future__ import annotations

import asyncio

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_kit.traces import Span
from headrace_transport.errors import CommandFailed, TransportUnavailable
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import ModelNotFound, RequestNotFound, transport_errors
from headrace_gateway.inference import lookup
from headrace_gateway.inference.book import Book
from headrace_gateway.inference.calls import Caller
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.lookup import Found
from headrace_gateway.inference.recovery import Recovery
from headrace_gateway.inference.resume import EdgeNote, resumed_session
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.metrics import GatewayMetrics

log = get_logger(__name__)


class TakingUp:
    """Finds calls by id, wherever they run."""

    def __init__(
        self,
        wire: GatewayWire,
        process: str,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        book: Book,
        inbox: Inbox,
        catalog: Catalog,
        recovery: Recovery,
    ) -> None:
        self._wire = wire
        self._process = process
        self._clock = clock
        self._metrics = metrics
        self._book = book
        self._inbox = inbox
        self._catalog = catalog
        self._recovery = recovery
        self._one = asyncio.Lock()

    async def opened(self, request_id: str, caller: Caller, span: Span) -> OpenCall:
        """The call as it is open here, or taken up. What is here waits for nobody else's.

        Raises ``RequestNotFound`` for an unknown one, and for another key's.
        """
        call = self._book.find(request_id)
        if call is None or call.moved:
            async with self._one:  # of two at once, one takes it up
                call = self._book.find(request_id)
                if call is not None and call.moved:  # taken up like one that was never here
                    self._book.drop(call, self._inbox)
                    call = None
                if call is None:
                    return await self._take_up(request_id, caller, span)
        lookup.check_owner(call.tenant, call.key_id, request_id, caller)
        self._metrics.resumes.labels("here").inc()
        span.link(call.sessions[0].record.traceparent)
        return call

    async def take_back(self, call: OpenCall) -> None:
        """A call that is open here may be read elsewhere by now, which this gateway need not know
        yet. Whoever reads on here takes it back: the newest reader is the one that counts.
        """
        for session in call.sessions:
            if session.ended:
                continue
            try:
                state = await self._wire.request_state(session.id)
                if state is not None and state.gateway not in ("", self._process):
                    session.attach_wanted = True
                    await self._recovery.mend(session)
            except TransportUnavailable:
                return  # what is here can be read; the rest comes when the server does
            except CommandFailed as error:  # its state is damaged: so it can
                log.error("request.unreadable", id=session.id, reason=str(error))

    async def _take_up(self, request_id: str, caller: Caller, span: Span) -> OpenCall:
        """Makes a call of what the server knows, and has its rows sent here."""
        found = await lookup.find(self._wire, request_id, caller)
        note = EdgeNote.decode(found.first.edge)
        if note is None or not found.complete:
            raise RequestNotFound(request_id)
        try:
            model = await self._catalog.model(found.first.model)
        except ModelNotFound as error:
            raise RequestNotFound(request_id) from error
        now = self._clock.monotonic()
        sessions = [
            resumed_session(record_id, model, note, state, now=now)
            for record_id, state in found.states
        ]
        call = OpenCall(
            call_id=request_id,
            model=found.first.model,
            kind=note.kind,
            key_id=caller.key_id,
            tenant=caller.tenant,
            n=found.first.n,
            sessions=sessions,
            names=model.text,
            fingerprint=model.fingerprint,
            created_ms=found.first.created_ms,
            arrived=now,
            deadline=None,
            span=span,
            resumed=True,
            resumable=True,
            grace_s=note.grace_s,
        )
        for session in sessions:
            self._inbox.open(session)
        try:
            with transport_errors():
                for session in sessions:
                    await self._recovery.mend(session)
        except BaseException:
            for session in sessions:
                self._inbox.close(session)
            raise
        if _is_forgotten(call, found):
            for session in sessions:
                self._inbox.close(session)
            raise RequestNotFound(request_id)
        self._metrics.resumes.labels("log" if call.ended else "engine").inc()
        span.link(note.traceparent)
        self._book.enter(call)
        return call


def _is_forgotten(call: OpenCall, found: Found) -> bool:
    """Whether a call has ended and its log is gone: there is nothing to read of it."""
    used = [state.usage.completion_tokens for _, state in found.states if state.usage is not None]
    return call.ended and sum(used) > 0 and call.usage.completion_tokens == 0
