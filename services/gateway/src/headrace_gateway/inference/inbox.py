"""This process's result stream: frames and fences come in, sessions get their rows.

One task reads the stream from an explicit position; nothing is skipped, and what was read is
trimmed only when the resume log holds it. Next: headrace_gateway.inference.session
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Fence, Frame, RowFinish, RowStart
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import FIRST_FRAME, FrameId, GatewayWire

from headrace_gateway.errors import Internal
from headrace_gateway.inference.session import FramePosition, Outcome, Session, code_of
from headrace_gateway.metrics import GatewayMetrics

log = get_logger(__name__)

BLOCK_MS: Final = 1000
"""Longest wait of one read: so soon a stop is noticed."""
SLOTS: Final = 2**32
RETRY_FIRST_S: Final = 0.05
RETRY_MOST_S: Final = 1.0


class Inbox:
    """The slots of this process, and the one reader of its result stream.

    A slot is not used again within the life of the process (short of four billion choices), so
    a late row can never reach another request.
    """

    def __init__(
        self,
        wire: GatewayWire,
        gateway: str,
        clock: Clock,
        metrics: GatewayMetrics,
        *,
        heard: Callable[[Session, Outcome, int], None],
        reconnected: Callable[[], None],
    ) -> None:
        """``heard(session, outcome, choice)`` is called when a row did more than bring tokens.
        ``reconnected`` after an outage: rows may have been lost.
        """
        self._wire = wire
        self._gateway = gateway
        self._clock = clock
        self._metrics = metrics
        self._heard = heard
        self._reconnected = reconnected
        self._places: dict[int, tuple[Session, int]] = {}
        self._sessions: dict[str, tuple[int, Session]] = {}
        self._next_slot = 1
        self._after: FramePosition = position(FIRST_FRAME)

    def open(self, session: Session) -> int:
        """Gives the session its slots, and writes the first into its record."""
        n = len(session.choices)
        if self._next_slot + n > SLOTS:
            self._next_slot = 1
        while any(self._next_slot + i in self._places for i in range(n)):
            self._next_slot += 1
        first = self._next_slot
        self._next_slot += n
        for i in range(n):
            self._places[first + i] = (session, i)
        self._sessions[session.id] = (first, session)
        session.record.slot = first
        session.record.gateway = self._gateway
        return first

    def close(self, session: Session) -> None:
        """Takes the slots back; rows that still come are dropped."""
        first, known = self._sessions.get(session.id, (0, None))
        if known is not session:
            return
        del self._sessions[session.id]
        for i in range(len(session.choices)):
            self._places.pop(first + i, None)

    def session(self, record_id: str) -> Session | None:
        """The open session of a record."""
        found = self._sessions.get(record_id)
        return None if found is None else found[1]

    @property
    def sessions(self) -> list[Session]:
        """Every session that has slots."""
        return [session for _, session in self._sessions.values()]

    async def read(self) -> None:
        """Reads for ever. Ends only by cancellation."""
        wait_s, down = RETRY_FIRST_S, False
        while True:
            try:
                entries = await self._wire.read_out(
                    self._gateway, frame_id(self._after), block_ms=BLOCK_MS
                )
            except TransportUnavailable:
                if not down:
                    log.warning("inbox.unreachable")
                    self._metrics.backend_up.set(0)
                down = True
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_MOST_S)
                continue
            if down:
                log.info("inbox.reachable")
                self._reconnected()
            wait_s, down = RETRY_FIRST_S, False
            self._metrics.backend_up.set(1)
            for entry in entries:
                at = position(entry.id)
                match entry.item:
                    case Fence():
                        self.take_fence(entry.item)
                    case Frame():
                        self.take_frame(entry.item, at)
                    case None:
                        pass  # of another version: who waits for it goes silent, and is mended
                self._after = at
            await asyncio.sleep(0)  # readers send what came before more is asked for

    def take_fence(self, fence: Fence) -> None:
        """From here on, rows of earlier attempts at this request are stale."""
        found = self._places.get(fence.slot)
        if found is not None and found[0].id == fence.id:
            found[0].fence(fence.attempt)
            found[0].last_sign = self._clock.monotonic()

    def take_frame(self, frame: Frame, at: FramePosition) -> None:
        """Hands each row to its session."""
        self._metrics.frames.inc()
        self._metrics.frame_lag.set(max(0.0, (self._clock.wall_ms() - at[0]) / 1000))
        now = self._clock.monotonic()
        starts = {row.row: row for row in frame.starts} if frame.starts else {}
        finishes = {row.row: row for row in frame.finishes} if frame.finishes else {}
        logprobs = {row.row: row for row in frame.logprobs} if frame.logprobs else {}
        # plain lists: each look into a column of a message costs a call
        attempts, firsts = list(frame.attempts), list(frame.firsts)
        tokens, logged = list(frame.tokens), list(frame.logged)
        offset = 0
        for row, (slot, count) in enumerate(zip(frame.slots, frame.counts, strict=True)):
            begin, offset = offset, offset + count
            found = self._places.get(slot)
            if found is None:
                self._metrics.stale_rows.labels("ended").inc()
                continue
            session, index = found
            try:
                outcome = session.take_row(
                    index,
                    attempt=attempts[row],
                    first=firsts[row],
                    tokens=tokens[begin:offset],
                    logged=logged[row] if row < len(logged) else 0,
                    now=now,
                    pin=at,
                    logprobs=logprobs.get(row),
                )
                start, finish = starts.get(row), finishes.get(row)
                if outcome is Outcome.NEWS and start is None and finish is None:
                    session.wake()  # most rows, by far: one more token
                    continue
                if not outcome & (Outcome.STALE | Outcome.BEHIND):
                    outcome |= _side_columns(session, index, start, finish)
            except Exception:
                # The boundary of one request: its fault must not stop the others' rows.
                log.exception("inbox.row_failed", id=session.id)
                session.fail(Internal("The answer could not be put together."), now)
                outcome = Outcome.NEWS
            self._count(outcome)
            if session.ended:
                session.close(now)
            elif outcome & Outcome.NEWS:
                session.wake()
            if outcome:
                self._heard(session, outcome, index)

    async def trim(self, *, age_s: float) -> None:
        """Deletes what was read, is logged, and is older than ``age_s``. Raises
        ``TransportUnavailable``.
        """
        oldest = (self._clock.wall_ms() - int(age_s * 1000), 0)
        below = min(self._after, oldest)
        for session in self.sessions:
            pin = session.oldest_pin()
            if pin is not None and pin < below:
                below = pin
        if below > (0, 0):
            await self._wire.trim_out(self._gateway, frame_id(below))

    def _count(self, outcome: Outcome) -> None:
        if outcome & Outcome.STALE:
            self._metrics.stale_rows.labels("fenced").inc()
        elif outcome & Outcome.DUPLICATE:
            self._metrics.stale_rows.labels("duplicate").inc()


def _side_columns(
    session: Session, index: int, start: RowStart | None, finish: RowFinish | None
) -> Outcome:
    """What a row's start and end say, once its tokens are in."""
    if start is not None:
        session.cached_tokens = max(session.cached_tokens, start.cached_tokens)
        session.engine_queue_s = start.engine_queue_us / 1e6
    if finish is None:
        return Outcome.NONE
    session.cached_tokens = max(session.cached_tokens, finish.usage.cached_tokens)
    return session.take_finish(
        index, FinishReason(finish.reason), code_of(finish.code), finish.message
    )


def position(frame: FrameId) -> FramePosition:
    """A frame id as a pair that compares like the stream does."""
    ms, _, n = frame.partition("-")
    return int(ms), int(n or 0)


def frame_id(at: FramePosition) -> FrameId:
    """The other way."""
    return FrameId(f"{at[0]}-{at[1]}")
