"""A reader of one call: what an edge iterates over.

It keeps a position in each choice and makes of the tokens behind it one delta at a time, so
what a slow client has not read is coalesced. Next: the edge that asked for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from headrace_contracts.codes import FinishReason
from headrace_kit.traces import NO_SPAN, Span
from headrace_transport.endings import worst

from headrace_gateway.errors import Conflict
from headrace_gateway.inference.calls import (
    Delta,
    Done,
    Event,
    KeepAlive,
    RateState,
    Reservation,
    TokenInfo,
    TopToken,
    UsageTotal,
)
from headrace_gateway.inference.session import Choice, Session


class TokenNames(Protocol):
    """What token ids look like."""

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


class OpenCall:
    """An admitted call: its sessions, one per prompt, and who reads them."""

    def __init__(
        self,
        *,
        call_id: str,
        model: str,
        kind: str,
        key_id: str,
        tenant: str,
        n: int,
        sessions: Sequence[Session],
        names: TokenNames,
        fingerprint: str,
        created_ms: int,
        arrived: float,
        deadline: float | None,
        span: Span = NO_SPAN,
        resumed: bool = False,
        resumable: bool = False,
        grace_s: float = 0.0,
    ) -> None:
        """``arrived`` and ``deadline`` in monotonic seconds."""
        self.id = call_id
        self.model = model
        self.kind = kind
        self.key_id = key_id
        self.tenant = tenant
        self.n = n
        self.sessions = sessions
        self.names = names
        self.fingerprint = fingerprint
        self.created_ms = created_ms
        self.arrived = arrived
        self.deadline = deadline
        self.span = span
        """The edge's that opened it here."""
        self.resumed = resumed
        self.resumable = resumable
        """Whether its client is told places at which another gateway can take it up."""
        self.grace_s = grace_s
        """How long it goes on without a reader, at least."""
        self.reservation: Reservation | None = None
        """Taken from its key's minute, and not settled."""
        self.rates: RateState | None = None
        """What was left of its key's minute when it was admitted."""
        self.readers: set[Running] = set()
        self.coming = 0
        """Readers that are being let in: as good as there, wherever a call without any would end."""
        self.left_at: float | None = None
        """Monotonic seconds at which the last reader left before the end."""
        self.cause = ""
        """Why it was cancelled here, if it was."""
        self.reported = False
        """Whether its end has been counted and logged."""

    @property
    def ended(self) -> bool:
        """Whether every session has ended here."""
        return all(session.ended for session in self.sessions)

    @property
    def answered(self) -> bool:
        """Whether every choice has its end: whoever reads it here knows how it ended."""
        return self.ended and not any(session.failure for session in self.sessions)

    @property
    def finish(self) -> FinishReason | None:
        """One reason for all choices that have ended; None while none has."""
        finishes = [choice.finish for session in self.sessions for choice in session.choices]
        known = [finish for finish in finishes if finish is not None]
        return worst(known) if known else None

    @property
    def moved(self) -> bool:
        """Whether another gateway has it: it has ended here, and goes on there."""
        return any(isinstance(session.failure, Conflict) for session in self.sessions)

    @property
    def cancelled(self) -> bool:
        """Whether it was ended here before its answer was whole."""
        return any(
            choice.finish in (FinishReason.CANCELLED, FinishReason.DEADLINE)
            for session in self.sessions
            for choice in session.choices
        )

    @property
    def usage(self) -> UsageTotal:
        """Sums so far."""
        return UsageTotal(
            prompt_tokens=sum(session.prompt_tokens for session in self.sessions),
            completion_tokens=sum(
                len(choice.tokens) for session in self.sessions for choice in session.choices
            ),
            cached_tokens=sum(session.cached_tokens for session in self.sessions),
        )


@dataclass(slots=True)
class Place:
    """How far one reader has read one choice."""

    index: int
    session: Session
    choice: Choice
    tokens: int
    told_end: bool = False
    infos: int = 0
    """Tokens whose logprobs were given."""
    info_bytes: int = 0
    """Bytes of those tokens."""
    text_bytes: int = 0
    """Bytes of the text that was given."""


class CallOwner(Protocol):
    """What a reader asks of the service."""

    def left(self, call: OpenCall, reader: Running) -> Coroutine[None, None, None]: ...

    def cancel_call(self, call: OpenCall, *, cause: str) -> Coroutine[None, None, None]: ...


class Running:
    """The events of one call, from some position on; an async iterator that ends after ``Done``.

    Raises the ``GatewayError`` that ended the whole call, once, after what came before it.
    One consumer only. ``aclose`` belongs in its ``finally``.
    """

    def __init__(
        self,
        call: OpenCall,
        owner: CallOwner,
        *,
        after: Callable[[int], int],
        keepalive_s: float,
        echo: Sequence[str] = (),
    ) -> None:
        """``after``: per index, the tokens that this reader has already. ``echo``: text to begin
        each prompt's choices with.
        """
        self._call = call
        self._owner = owner
        self._keepalive_s = keepalive_s
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._spoke_at = 0.0
        """Time of the event loop at which the last event was given."""
        self._silent = False
        """Whether nothing was given for ``keepalive_s``."""
        self._wake = asyncio.Event()
        self._push: Callable[[Delta], bool] | None = None
        self._waiting = False
        """Whether the consumer sleeps until there is an event."""
        self._events: deque[Event] = deque()
        self._cursors: list[int] = []
        self._over = False
        self._closed = False
        self._places: list[Place] = []
        for number, session in enumerate(call.sessions):
            session.listeners.add(self._heard)
            for j, choice in enumerate(session.choices):
                index = number * call.n + j
                self._places.append(_place(index, session, choice, after(index), call.names))
                if echo:
                    self._events.append(Delta(index, echo[number], (), (), 0))
        self._cursors = [place.tokens for place in self._places]
        self._wake.set()
        call.readers.add(self)

    @property
    def id(self) -> str:
        """Id of the call."""
        return self._call.id

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._call.model

    @property
    def created_s(self) -> int:
        """Unix seconds at which the call was admitted."""
        return self._call.created_ms // 1000

    @property
    def n(self) -> int:
        """Choices per prompt."""
        return self._call.n

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(session.prompt_tokens for session in self._call.sessions)

    @property
    def rates(self) -> RateState | None:
        """What was left of its key's minute when the call was admitted; None: it has no limit."""
        return self._call.rates

    @property
    def system_fingerprint(self) -> str:
        """Changes when the weights or their precision do."""
        return self._call.fingerprint

    @property
    def cursor(self) -> str:
        """Where the last delta ended: what ``resume`` takes as ``after``."""
        cursors = self._cursors
        return str(cursors[0]) if len(cursors) == 1 else ",".join(map(str, cursors))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            if self._events:
                return self._give(self._events.popleft())
            if self._over or self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            self._collect()
            if self._events:
                continue
            failure = next((s.failure for s in self._call.sessions if s.failure), None)
            if failure is not None:
                self._over = True
                raise failure
            if self._silent:
                return self._give(KeepAlive())
            if self._alarm is None:
                self._spoke_at = self._loop.time()
                self._set_alarm(self._keepalive_s)
            self._waiting = True
            try:
                await self._wake.wait()
            finally:
                self._waiting = False

    def follow(self, push: Callable[[Delta], bool]) -> None:
        """While the consumer waits for the next event, deltas are given to ``push`` as they
        arrive, without waking it. ``push`` returns False if it can take none now: that delta is
        the consumer's. So is every other event, a delta that ends its choice, and all of a call
        of several choices, which come together at one wake-up.
        """
        if len(self._places) == 1:
            self._push = push

    async def cancel(self) -> None:
        """Cancels the call, for every reader; the stream ends with CANCELLED."""
        await self._owner.cancel_call(self._call, cause="request")

    async def aclose(self) -> None:
        """Stops reading. The last reader to leave an unfinished call cancels it, or starts its
        resume grace. Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for session in self._call.sessions:
            session.listeners.discard(self._heard)
        self._call.readers.discard(self)
        await self._owner.left(self._call, self)

    def _heard(self) -> None:
        """A session has news."""
        push = self._push
        if push is None or not self._waiting or self._wake.is_set():
            self._wake.set()
            return
        [place] = self._places
        delta = self._delta(place)
        if delta is not None:
            self._cursors[0] = delta.cursor
            if delta.finish is not None or not push(delta):
                self._events.append(delta)
                self._wake.set()
                return
            self._spoke_at = self._loop.time()
            self._silent = False
        if place.session.failure is not None:
            self._wake.set()

    def _set_alarm(self, after_s: float) -> None:
        # One alarm for many events, and not a timeout for each: most have their event by far.
        self._alarm = self._loop.call_later(after_s, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        rest_s = self._spoke_at + self._keepalive_s - self._loop.time()
        if rest_s > 0:
            self._set_alarm(rest_s)
            return
        self._silent = True
        self._wake.set()

    def _give(self, event: Event) -> Event:
        self._spoke_at = self._loop.time()
        self._silent = False
        if isinstance(event, Delta):
            self._cursors[event.index] = event.cursor
        elif isinstance(event, Done):
            self._over = True
        return event

    def _collect(self) -> None:
        """Makes one delta of each choice that has news; ``Done`` after the last end."""
        for place in self._places:
            delta = self._delta(place)
            if delta is not None:
                self._events.append(delta)
        if all(place.told_end for place in self._places):
            self._events.append(Done(self._call.usage))

    def _delta(self, place: Place) -> Delta | None:
        choice = place.choice
        first, end = place.tokens, len(choice.tokens)
        finished = choice.finish is not None
        if place.told_end or (first >= end and not finished):
            return None
        text = "".join(choice.pieces[first:end])
        if finished:
            text += choice.tail
        elif not text:
            return None  # held back: a character or a stop string may be incomplete
        place.tokens = end  # not where a cursor beyond it says
        place.told_end = finished
        return Delta(
            index=place.index,
            text=text,
            token_ids=tuple(choice.tokens[first:end]),
            tokens=self._infos(place, text) if choice.candidates is not None else (),
            cursor=place.tokens,
            finish=choice.finish,
            code=choice.code,
            message=choice.message,
        )

    def _infos(self, place: Place, text: str) -> Sequence[TokenInfo]:
        """Logprobs of the tokens whose text is out, so that tokens and text keep step.

        A stop string, or a stop token, has no text and therefore no entry.
        """
        choice, names = place.choice, self._call.names
        assert choice.candidates is not None
        place.text_bytes += len(text.encode("utf-8", "replace"))
        infos: list[TokenInfo] = []
        while place.infos < place.tokens:
            token = choice.tokens[place.infos]
            raw = names.token_bytes(token)
            if choice.finish is None:
                if place.info_bytes + len(raw) > place.text_bytes:
                    break  # its text is held back
            elif choice.stop_string:
                if place.info_bytes >= place.text_bytes:
                    break
            elif (
                choice.finish is FinishReason.STOP
                and place.infos == len(choice.tokens) - 1
                and token in place.session.hidden
            ):
                break
            found = choice.candidates[place.infos]
            infos.append(
                TokenInfo(
                    id=token,
                    text=names.token_text(token),
                    raw=raw,
                    logprob=found.chosen,
                    top=[
                        TopToken(i, names.token_text(i), names.token_bytes(i), value)
                        for i, value in zip(found.ids, found.values, strict=True)
                    ],
                )
            )
            place.infos += 1
            place.info_bytes += len(raw)
        return infos


def _place(index: int, session: Session, choice: Choice, after: int, names: TokenNames) -> Place:
    """A place after ``after`` tokens, as if a reader had read them."""
    place = Place(index, session, choice, after, infos=after)
    known = min(after, len(choice.tokens))
    if choice.candidates is not None:
        place.info_bytes = sum(len(names.token_bytes(t)) for t in choice.tokens[:known])
        place.text_bytes = len("".join(choice.pieces[:known]).encode("utf-8", "replace"))
    return place
