"""Publisher: passes in, frames out: one per gateway and pass, coalesced when the server is slow.

Owner    io thread; ``pump`` runs on the signal thread and touches only the door
Writes   RowBook (what is published), Held.ends
Never    stalls the engine thread; keeps more than ``buffer_tokens``
Rules    frames.one-per-gateway-and-pass, frames.bounded, drain.failed-without-blame
Next     headrace_engine.intake.publisher_log

While one publication is under way, further passes collect here and leave as one frame, so
that a slow or absent server costs nothing but delay. Decoding continues. When more than
``buffer_tokens`` wait, the request with most of them is let go: its lease lapses and a
successor continues it at the first token that nobody saw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import numpy as np
from headrace_contracts.codes import Code
from headrace_contracts.limits import LOG_EVERY_S, LOG_EVERY_TOKENS
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import EngineWire, FrameId

from headrace_engine.intake.book import NEVER
from headrace_engine.intake.columns import Int64, Rows, from_outputs, merge, select
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held
from headrace_engine.intake.link import Link
from headrace_engine.intake.publisher_frames import frames_of, row_finish
from headrace_engine.metrics import EngineMetrics
from headrace_engine.state.outputs import PassOutputs, RowEnd

log = get_logger(__name__)

_MERGE_AT = 64
"""Passes that wait as they came before they are merged into one."""
_PUMP_WAIT_S = 0.5
SPARED_ATTEMPTS = 3
"""Attempts in which a request that an engine's failure spared gets no blame. After so many, whatever the
engines say of it, each failure beside it counts: they may be wrong, and none is to break without end."""
_GATEWAYS = 512
"""Gateways whose newest frame is remembered before those that read nothing now are forgotten."""


class OutputDoor(Protocol):
    """The engine's door as the signal thread sees it."""

    def take_outputs(self, timeout_s: float) -> list[PassOutputs] | None:
        """Everything notified since the last call; None once closed and empty."""
        ...


def pump(door: OutputDoor, hand_over: Callable[[list[PassOutputs]], None]) -> None:
    """Body of the signal thread: hands outputs to io until the door is closed and empty."""
    while (batch := door.take_outputs(_PUMP_WAIT_S)) is not None:
        if batch:
            hand_over(batch)


class Publisher:
    """Turns outputs into frames, and tells the book, the log and the held requests."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        engine: str,
        desk: Desk,
        link: Link,
        metrics: EngineMetrics,
        clock: Clock,
        buffer_tokens: int,
    ) -> None:
        """``engine`` is this process's id."""
        self._wire = wire
        self._engine = engine
        self._desk = desk
        self._link = link
        self._metrics = metrics
        self._clock = clock
        self._buffer_tokens = buffer_tokens
        self._pending: list[Rows] = []
        self._pending_tokens = 0
        self._pending_since: float | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.sending = asyncio.Lock()
        """Held while a publication is under way."""
        self.log_wake = asyncio.Event()
        """Set when the log's writer has something to do, or a time to look at."""
        self.over: list[Held] = []
        """Requests whose terminal rows are all published, for the log's writer to settle."""
        self.frame_ids: dict[str, FrameId] = {}
        """Newest frame of each gateway."""

    def take(self, batch: list[PassOutputs]) -> None:
        """Passes of the engine, in their order."""
        for outputs in batch:
            self._desk.seen(outputs)
            self.offer(self._without_migrating(from_outputs(outputs)))

    def offer(self, rows: Rows) -> None:
        """Rows to publish. Never waits."""
        if self._pending_since is None:
            self._pending_since = self._clock.monotonic()
        self._pending.append(rows)
        self._pending_tokens += len(rows.tokens)
        if len(self._pending) > _MERGE_AT:
            self._pending = [merge(self._pending)]
        while self._pending_tokens > self._buffer_tokens and len(self._desk.holdings):
            self._give_up_largest()
        self._idle.clear()
        self._wake.set()

    async def run(self) -> None:
        """Publishes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                async with self.sending:
                    error = await self._flush()
                if error is not None:
                    await self._link.failed(error)
            self._idle.set()

    async def flushed(self) -> None:
        """Returns once nothing waits for publication."""
        await self._idle.wait()

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait for publication."""
        return self._pending_tokens

    async def _flush(self) -> TransportUnavailable | None:
        rows = merge(self._pending)
        since = self._pending_since
        places = self._desk.book.find(rows.keys)
        if len(places) and int(places.min()) < 0:
            held = places >= 0
            rows, places = select(rows, held), places[held]
        self._pending, self._pending_tokens, self._pending_since = [], 0, None
        if not len(rows.keys):
            return None
        frames = frames_of(rows, places, self._desk.book, self._engine)
        try:
            ids = await self._wire.publish(frames)
        except TransportUnavailable as error:
            # Whether it arrived is unknown; the same rows again do no harm (they carry indices).
            self._pending.insert(0, rows)
            self._pending_tokens += len(rows.tokens)
            self._pending_since = since
            return error
        self._link.succeeded()
        self.frame_ids.update(ids)
        if len(self.frame_ids) > _GATEWAYS:
            self.frame_ids = {
                name: frame
                for name, frame in self.frame_ids.items()
                if name in self._desk.book.gateway_names
            }
        if since is not None:
            self._metrics.publish_lag.observe(self._clock.monotonic() - since)
        self._record(rows)
        return None

    def _record(self, rows: Rows) -> None:
        """Notes in book and holdings what is out now."""
        book = self._desk.book
        places = book.find(rows.keys)  # again: a request may have been let go meanwhile
        held = places >= 0
        rows, places = select(rows, held), places[held]
        fresh = places[(rows.firsts == 0) & (rows.counts > 0)]
        book.published(places, rows.firsts, rows.counts, rows.tokens)
        now = self._clock.monotonic()
        undated = bool(np.any(book.due[places] == NEVER))
        book.due[places] = np.minimum(book.due[places], now + LOG_EVERY_S)
        for place in fresh.tolist():
            self._metrics.first_token.observe(now - book.owner(place).claimed_s)
        self._metrics.generation_tokens.inc(len(rows.tokens))
        for row, item in rows.logprobs:
            owner = book.owner(int(places[row]))
            owner.unlogged_logprobs.setdefault(int(book.choices[places[row]]), []).append(item)
        for row, end in rows.ends:
            self._ended(book.owner(int(places[row])), int(book.choices[places[row]]), end)
        if undated or self._log_is_due(places):
            self.log_wake.set()

    def _ended(self, held: Held, choice: int, end: RowEnd) -> None:
        held.ends[choice] = row_finish(end, choice)
        held.usages[choice] = end.usage
        held.unlogged_ends.add(choice)
        self._metrics.ended(end)
        if held.over:
            self.over.append(held)
            self.log_wake.set()

    def _without_migrating(self, rows: Rows) -> Rows:
        """What a failing engine ended has not ended: a successor continues it.

        What ran and may be to blame is let go, and its lease lapses, which counts as a crash.
        What is not to blame, or no pass has touched, stays held, to be handed back.
        """
        ends = [(row, end) for row, end in rows.ends if end.code is Code.ENGINE_FAILED]
        if not ends:
            return rows
        book, failed = self._desk.book, [row for row, _ in ends]
        blamed: dict[Held, bool] = {}
        places: list[int] = book.find(rows.keys[failed]).tolist()
        for place, (_, end) in zip(places, ends, strict=True):
            if place >= 0:
                held = book.owner(place)
                spared = end.spared and held.attempt <= SPARED_ATTEMPTS
                blamed[held] = blamed.get(held, False) or not spared
        for held, may_have_broken_it in blamed.items():
            if not may_have_broken_it:
                held.spared = True
            elif held.started:
                self._desk.let_go(held, "failed")
        mask = np.ones(len(rows.keys), dtype=np.bool_)
        mask[failed] = False
        return select(rows, mask)

    def _log_is_due(self, places: Int64) -> bool:
        book = self._desk.book
        return bool(np.any(book.ends[places] - book.logged[places] >= LOG_EVERY_TOKENS))

    def _give_up_largest(self) -> None:
        """Lets the request go that has most tokens waiting, and drops the rows of it."""
        rows = merge(self._pending)
        places = self._desk.book.find(rows.keys)
        held = places >= 0
        rows, places = select(rows, held), places[held]
        if len(rows.keys):
            victim = self._desk.book.owner(int(places[int(np.argmax(rows.counts))]))
            log.warning("frames.bound_hit", id=victim.id, limit_tokens=self._buffer_tokens)
            self._desk.let_go(victim, "gave_up")
            rows = select(rows, self._desk.book.find(rows.keys) >= 0)
        self._pending = [rows]
        self._pending_tokens = len(rows.tokens)
