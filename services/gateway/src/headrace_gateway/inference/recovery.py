"""What became of a request that went silent, and how its stream goes on.

Rows can be missing (a frame was lost), their engine can be gone, the server can have lost
everything. The server is asked; the log and an attach bring what is missing; what the server
no longer knows is submitted again with what was delivered; and what nobody will run any more
ends with an error. Next: headrace_gateway.inference.session
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import LogEntry, RowFinish, RowLogprobs
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.errors import (
    CommandFailed,
    ForeignVersion,
    RequestConflict,
    TransportUnavailable,
)
from headrace_transport.interface import GatewayWire, Lease, RequestState

from headrace_gateway.errors import (
    BACKEND_RETRY_S,
    BackendUnavailable,
    Conflict,
    EngineFailed,
    HeadraceFailed,
    Internal,
    NoEngine,
)
from headrace_gateway.inference.cancels import Cancels
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.session import (
    MISSING_LOGPROB,
    Candidates,
    Outcome,
    Session,
)
from headrace_gateway.inference.tasks import Tasks
from headrace_gateway.metrics import GatewayMetrics

log = get_logger(__name__)

CHECKS_AT_ONCE: Final = 256
"""Sessions looked after in one round, so that many silent ones do not flood the server."""
CHECK_MOST_S: Final = 30.0
"""Longest time between two questions about one silent request."""
BEHIND_CHECK_S: Final = 0.1
"""Time between two tries to fetch what is missing."""
JUMP: Final = 8
"""Added to the attempt of what is submitted again: past all that the lost server may have given."""
NO_BOUND: Final = 2**31 - 1
"""A request that was admitted once is not refused when it is submitted again."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long silence may last."""

    check_s: float
    """Until the server is asked."""
    lost_engine_s: float
    """Until a request without a living engine ends with an error."""
    scale_from_zero: bool
    """Whether queued requests wait for an engine however long it takes."""


class Recovery:
    """Looks after sessions that went silent or fell behind."""

    def __init__(
        self,
        wire: GatewayWire,
        gateway: str,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        inbox: Inbox,
        catalog: Catalog,
        cancels: Cancels,
        tasks: Tasks,
        patience: Patience,
        changed: Callable[[Session], None],
    ) -> None:
        """``changed(session)`` is called when mending brought tokens, an end or a failure."""
        self._wire = wire
        self._gateway = gateway
        self._clock = clock
        self._metrics = metrics
        self._inbox = inbox
        self._catalog = catalog
        self._cancels = cancels
        self._tasks = tasks
        self._patience = patience
        self._changed = changed
        self._mending: set[str] = set()
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()

    def look(self, sessions: Iterable[Session]) -> None:
        """Starts mending what is due. Cheap for what is well."""
        now = self._clock.monotonic()
        started = 0
        for session in sessions:
            if session.ended or not session.submitted or now < session.next_check:
                continue
            silent = now - session.last_sign >= self._patience.check_s
            if not (silent or session.behind or session.attach_wanted):
                continue
            if started == CHECKS_AT_ONCE:
                return
            started += self.start(session)

    def start(self, session: Session) -> bool:
        """Mends a session beside everything else, unless that is being done."""
        if session.id in self._mending or self._stopped:
            return False
        self._tasks.spawn(self._run(session), name=f"mend {session.id}")
        return True

    def check_all_soon(self) -> None:
        """After an outage nothing is certain: every session is looked after in the next rounds."""
        now = self._clock.monotonic()
        for session in self._inbox.sessions:
            session.last_sign = min(session.last_sign, now - self._patience.check_s)
            session.next_check = now

    async def _run(self, session: Session) -> None:
        if self._stopped:
            return
        try:
            await self.mend(session)
        except TransportUnavailable:
            session.next_check = self._clock.monotonic() + 1.0

    async def stop(self, *, timeout_s: float) -> None:
        """Mends nothing any more, and waits for what is under way: an attach that reached the server
        late would take a stream back from the gateway that it was handed over to.
        """
        self._stopped = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()

    async def mend(self, session: Session) -> None:
        """Brings a session up to date with the server, unless that is being done: of two at once,
        one would judge by what the server said before the other's attach. Raises
        ``TransportUnavailable``.
        """
        if session.id in self._mending:
            return
        self._mending.add(session.id)
        self._idle.clear()
        try:
            await self._mend(session)
        except ForeignVersion as error:
            self._fail(session, Internal(f"The answer cannot be read here: {error}."))
        except CommandFailed as error:  # damaged: asking again would not help
            log.error("request.unreadable", id=session.id, reason=str(error))
            self._fail(session, Internal("What is kept of this request cannot be read."))
        except TransportUnavailable:
            raise
        except Exception:
            # The boundary of one request: what broke here would break at the next look too.
            log.exception("request.mend_failed", id=session.id)
            self._fail(session, Internal("The answer could not be put together."))
        finally:
            self._mending.discard(session.id)
            if not self._mending:
                self._idle.set()

    async def _mend(self, session: Session) -> None:
        self._postpone(session)
        state = await self._wire.request_state(session.id)
        if session.ended:
            return
        if state is None:
            await self._lost(session)
        elif session.submitted and state.gateway not in ("", self._gateway):
            if not session.attach_wanted:
                self._fail(session, Conflict("The stream was taken up at another gateway."))
                return
            await self._follow(session, state)
        else:
            await self._follow(session, state)

    async def _follow(self, session: Session, state: RequestState) -> None:
        """Reads the log, then has the rest sent here."""
        if session.behind:
            self._metrics.recoveries.labels("gap").inc()
        outcome = await self._read_log(session)
        if session.ended:
            self._changed(session)
            return
        if outcome & Outcome.NEWS:
            self._changed(session)
        if state.status == "finished":
            self._end_as(session, state)
            return
        lease = await self._wire.attach(
            session.id,
            self._gateway,
            session.record.slot,
            session.first_missing,
            keeping=not session.attach_wanted,
        )
        if session.ended:
            return
        if lease is not None:
            session.attach_wanted = False
            session.fence(lease.attempt)
        await self._judge(session, state, lease)

    async def _read_log(self, session: Session) -> Outcome:
        outcome = Outcome.NONE
        sign = session.last_sign
        for entry_id, entry in await self._wire.read_log(session.id, session.log_after):
            outcome |= session.take_log(entry, now=self._clock.monotonic())
            session.log_after = entry_id
        if not outcome & Outcome.NEWS:
            session.last_sign = sign  # what was known is no sign of life
        return outcome

    def _end_as(self, session: Session, state: RequestState) -> None:
        """Ends choices whose end is in no log: they never ran, or ran nowhere else to the end."""
        now = self._clock.monotonic()
        reason = state.finish or FinishReason.ERROR
        used = 0 if state.usage is None else state.usage.completion_tokens
        lost = used > sum(len(choice.tokens) for choice in session.choices)
        if lost and reason in (FinishReason.STOP, FinishReason.LENGTH):
            reason = FinishReason.ERROR
        code = Code.INTERNAL if reason is FinishReason.ERROR else None
        text = "The request ended, but its last tokens are lost." if code else ""
        for choice in session.choices:
            choice.end(reason, code, text)
            choice.engine_done = True
        session.close(now)
        self._changed(session)

    async def _lost(self, session: Session) -> None:
        """The server does not know the request: it is submitted again, or ends with an error."""
        if not session.resumable:
            self._fail(
                session,
                BackendUnavailable("The server lost this request.", retry_after_s=BACKEND_RETRY_S),
            )
            return
        seen = session.attempt
        session.record.attempt = seen + JUMP
        # An engine may still run it, from before the loss, and no fence will ever come for that:
        # from here on only its successor is believed, which goes on from what is handed over now.
        session.fence(seen + JUMP + 1)
        handed = delivered(session, attempt=seen) if session.began_at is not None else None
        try:
            await self._wire.submit(session.record, max_queued=NO_BOUND, resume=handed)
        except RequestConflict:
            return  # it ended in this very moment: the next look finds how
        state = await self._wire.request_state(session.id)
        if state is not None and state.attempt < session.record.attempt:
            session.attempt = state.attempt  # it lives after all; nothing was queued
        session.log_after = "0-0"
        session.last_sign = self._clock.monotonic()
        self._metrics.recoveries.labels("resubmitted").inc()
        log.warning("request.resubmitted", id=session.id, attempt=session.attempt)

    async def _judge(self, session: Session, state: RequestState, lease: Lease | None) -> None:
        """Ends a request that no living engine will run."""
        now = self._clock.monotonic()
        if lease is not None and lease.overdue_ms > self._patience.lost_engine_s * 1000:
            self._fail(session, EngineFailed("The engine stopped and no other took over."))
            return
        try:
            engines = await self._catalog.engines(session.record.model)
        except CommandFailed as error:  # which says nothing of this request
            log.error("engines.unreadable", model=session.record.model, reason=str(error))
            return
        except BackendUnavailable:  # nor does this: it is up to date, and is looked at again
            return
        if engines:
            session.no_engine_since = None
            return
        if session.no_engine_since is None:
            session.no_engine_since = now
        waited = now - session.no_engine_since
        if waited < self._patience.lost_engine_s:
            return
        if lease is not None or state.status == "running":
            self._fail(session, EngineFailed("The engine stopped and no other took over."))
        elif not self._patience.scale_from_zero:
            self._fail(
                session,
                NoEngine("No engine serves this model now.", retry_after_s=BACKEND_RETRY_S),
            )

    def _fail(self, session: Session, error: Conflict | HeadraceFailed | ComeBack) -> None:
        session.fail(error, self._clock.monotonic())
        self._metrics.recoveries.labels("failed").inc()
        if not isinstance(error, Conflict):
            self._cancels.ask(
                session.record.model, session.id, FinishReason.CANCELLED, cause="failure"
            )
        self._changed(session)

    def _postpone(self, session: Session) -> None:
        """Sets when it is asked about next: soon where something is known to be missing, ever
        less often where it merely waits.
        """
        session.checks += 1
        if session.behind or session.attach_wanted:
            wait_s = min(BEHIND_CHECK_S * 2 ** min(session.checks - 1, 8), self._patience.check_s)
        else:
            wait_s = min(self._patience.check_s * 2 ** min(session.checks - 1, 8), CHECK_MOST_S)
            wait_s = max(wait_s, self._patience.check_s)
            wait_s = min(wait_s, self._patience.lost_engine_s / 2)
        session.next_check = self._clock.monotonic() + wait_s


ComeBack = BackendUnavailable | NoEngine


def delivered(session: Session, *, attempt: int) -> LogEntry:
    """What was handed out of a request, as the log entry that it goes on from."""
    entry = LogEntry(version=WIRE_VERSION, attempt=attempt)
    entry.prompt_tokens = session.prompt_tokens
    for row, choice in enumerate(session.choices):
        entry.choices.append(row)
        entry.firsts.append(0)
        entry.counts.append(len(choice.tokens))
        entry.tokens.extend(choice.tokens)
        if choice.candidates is not None:
            width = max((len(found.ids) for found in choice.candidates), default=0)
            entry.logprobs.append(choice_logprobs(row, width, choice.candidates))
        if choice.finish is not None:
            entry.finishes.append(
                RowFinish(row=row, reason=choice.finish.value, message=choice.message)
            )
    return entry


def choice_logprobs(row: int, width: int, candidates: Sequence[Candidates]) -> RowLogprobs:
    """A choice's logprobs as columns; tokens whose candidates got lost are padded."""
    made = RowLogprobs(row=row, width=width)
    for found in candidates:
        pad = width - len(found.ids)
        made.chosen.append(found.chosen)
        made.top_ids.extend([*found.ids, *[0] * pad])
        made.top_values.extend([*found.values, *[MISSING_LOGPROB] * pad])
    return made
