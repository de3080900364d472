"""The open calls of this process, and every way in which one of them ends.

A call ends once: at its engine's word, by a stop string, a cancel, its deadline, the end of
its grace, a failure. Whoever ends it here tells the engine too. Next:
headrace_gateway.inference.receipt
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.errors import CommandFailed, TransportUnavailable
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import DRAIN_RETRY_S, Conflict, Draining, HandedOver
from headrace_gateway.inference.admission import DrainRate
from headrace_gateway.inference.cancels import Cancels
from headrace_gateway.inference.inbox import Inbox
from headrace_gateway.inference.receipt import Receipts
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.session import Outcome, Session

log = get_logger(__name__)

REMARK_S: Final = 1.0
"""A choice that goes on although it was stopped is stopped again after this."""
MAX_RATES: Final = 256
"""Models whose queues are watched; beyond them the one goes that was asked for the longest ago."""
CLOSING_S: Final = 10.0
"""How long an ended request keeps its slots when its engine does not tell its end."""


class Book:
    """Open calls by id. One event loop; nothing here waits for anything but the server."""

    def __init__(
        self,
        wire: GatewayWire,
        process: str,
        clock: Clock,
        *,
        cancels: Cancels,
        receipts: Receipts,
        mend: Callable[[Session], object],
    ) -> None:
        """``mend`` fetches what a session misses."""
        self._wire = wire
        self._process = process
        self._clock = clock
        self._cancels = cancels
        self._receipts = receipts
        self._mend = mend
        self._calls: dict[str, OpenCall] = {}
        self._by_record: dict[str, OpenCall] = {}
        self._rates: dict[str, DrainRate] = {}
        self.unsettled = 0
        """Calls that have not ended."""

    def find(self, call_id: str) -> OpenCall | None:
        """An open call, or one that ended a moment ago."""
        return self._calls.get(call_id)

    @property
    def calls(self) -> list[OpenCall]:
        """All of them."""
        return list(self._calls.values())

    def answered(self, tenant: str, key_id: str) -> list[str]:
        """Records of a key's calls that have their ends here, a moment ago."""
        return [
            session.id
            for call in self._calls.values()
            if call.answered and (call.tenant, call.key_id) == (tenant, key_id)
            for session in call.sessions
        ]

    def enter(self, call: OpenCall) -> None:
        """Takes in a call whose requests are queued. Rows of it may have come before."""
        self._calls[call.id] = call
        self.unsettled += 1
        for session in call.sessions:
            self._by_record[session.id] = call
        for session in call.sessions:
            if session.ended:
                self.changed(session)

    def drop(self, call: OpenCall, inbox: Inbox) -> None:
        """Forgets a call that has ended here, whoever still reads its end."""
        self._forget(call, inbox)

    def rate(self, model: str) -> DrainRate:
        """How fast the model's queue empties."""
        rate = self._rates[model] = self._rates.pop(model, None) or DrainRate()
        if len(self._rates) > MAX_RATES:
            del self._rates[next(iter(self._rates))]
        return rate

    def heard(self, session: Session, outcome: Outcome, choice: int) -> None:
        """A row did something to a session."""
        now = self._clock.monotonic()
        if outcome & Outcome.BEGAN:
            self.rate(session.record.model).began(now)
        if outcome & Outcome.BEHIND and now >= session.next_check:
            self._mend(session)
        said = session.choices[choice]
        if outcome & Outcome.STOPPED or (
            outcome & Outcome.DUPLICATE and said.stop_string and now - said.marked_at > REMARK_S
        ):
            self._stop(session, choice)
        if session.ended:
            self.changed(session)

    def changed(self, session: Session) -> None:
        """A session ended, or was mended."""
        for index, choice in enumerate(session.choices):
            if choice.stop_string and not choice.engine_done and not choice.marked_at:
                self._stop(session, index)
        session.close(self._clock.monotonic())
        call = self._by_record.get(session.id)
        if call is None:
            return
        if session.failure is not None:  # one prompt's failure is the call's
            if call.moved:  # who took it up wants the other prompts to go on
                for other in call.sessions:
                    other.fail(session.failure, self._clock.monotonic())
            self._end_sessions(call, FinishReason.CANCELLED, "failure")
        self._settle(call)

    def end(self, call: OpenCall, reason: FinishReason, cause: str) -> None:
        """Ends a call at its readers now, and at its engine as soon as it hears of it."""
        if not call.ended:
            call.cause = call.cause or cause
        self._end_sessions(call, reason, cause)
        self._settle(call)

    def let_go(self, *, keep_s: float) -> int:
        """Ends every open call at its readers, since this process ends. With ``keep_s``, the
        engines go on for those that another gateway can take up; gives their number.
        """
        now = self._clock.monotonic()
        kept = 0
        for call in self.calls:
            if call.ended:
                continue
            call.cause = call.cause or "drain"
            keep = keep_s > 0 and call.resumable
            kept += keep
            for session in call.sessions:
                if session.ended:
                    continue
                session.fail(
                    HandedOver(within_s=keep_s)
                    if keep
                    else Draining("This gateway is shutting down.", retry_after_s=DRAIN_RETRY_S),
                    now,
                )
                if not keep:
                    self.cancel_record(session, "drain")
            self._settle(call)
        return kept

    def cancel_record(
        self, session: Session, cause: str, reason: FinishReason = FinishReason.CANCELLED
    ) -> None:
        """Tells the engine, or the queue, that a record is over."""
        self._cancels.ask(session.record.model, session.id, reason, cause=cause)

    def look(self, *, grace_s: float, inbox: Inbox) -> Iterable[OpenCall]:
        """Ends what is past its deadline and forgets what is over. Gives the calls whose readers
        have been gone for ``grace_s``, or the call's own grace if that is longer.
        """
        now = self._clock.monotonic()
        for call in self.calls:
            if call.ended:
                if not call.readers and not call.coming and not _closing(call, now):
                    self._forget(call, inbox)
            elif call.deadline is not None and now >= call.deadline:
                self.end(call, FinishReason.DEADLINE, "deadline")
            elif (
                call.left_at is not None
                and not call.coming
                and now - call.left_at >= max(grace_s, call.grace_s)
            ):
                call.left_at = None
                yield call

    async def grace_over(self, call: OpenCall) -> None:
        """Cancels a call that nobody took up, unless another gateway has it now, or may have it:
        while the server is away, which knows, it has another grace.
        """
        for session in call.sessions:
            if session.ended:
                continue
            state, away = None, False
            try:
                state = await self._wire.request_state(session.id)
            except TransportUnavailable:
                away = not call.readers
            except CommandFailed as error:  # damaged: nobody took it up by that
                log.error("request.unreadable", id=session.id, reason=str(error))
            if call.coming or away:  # and counts anew from here, should it not arrive
                call.left_at = self._clock.monotonic()
            if call.readers or call.left_at is not None:
                return
            if state is not None and state.gateway not in ("", self._process):
                moved = Conflict("The stream was taken up at another gateway.")
                session.fail(moved, self._clock.monotonic())
                self.changed(session)  # so have the other prompts, or will be
                return
        self.end(call, FinishReason.CANCELLED, "disconnect")

    def _end_sessions(self, call: OpenCall, reason: FinishReason, cause: str) -> None:
        for session in call.sessions:
            if not session.ended:
                session.end_here(reason, self._clock.monotonic())
                self.cancel_record(session, cause, reason)

    def _stop(self, session: Session, choice: int) -> None:
        """Tells the engine that a stop string ended a choice."""
        session.choices[choice].marked_at = self._clock.monotonic()
        self._cancels.ask(
            session.record.model,
            session.id,
            FinishReason.STOP,
            cause="stop_string",
            choice=choice,
        )

    def _settle(self, call: OpenCall) -> None:
        """Counts and logs the end of a call, once."""
        if call.ended and not call.reported:
            call.reported = True
            self.unsettled -= 1
            self._receipts.write(call)

    def _forget(self, call: OpenCall, inbox: Inbox) -> None:
        for session in call.sessions:
            inbox.close(session)
            if self._by_record.get(session.id) is call:
                del self._by_record[session.id]
        if self._calls.get(call.id) is call:  # and not what was taken up in its place
            del self._calls[call.id]


def _closing(call: OpenCall, now: float) -> bool:
    """Whether the engine may still have to be told again that a request is over."""
    return any(
        not session.engine_done
        and session.failure is None
        and session.ended_at is not None
        and now - session.ended_at < CLOSING_S
        for session in call.sessions
    )
