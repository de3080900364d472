"""LogWriter: appends to resume logs and settles requests that have ended, one batch after the other.

Owner    io thread
Writes   RowBook (what is logged), Holdings (settled requests leave)
Never    has two writes of one request under way
Rules    log.append-in-order, finish.after-terminal-frame, lease.lost-is-silent
Next     headrace_engine.intake.lease

A request is logged every 16 tokens or 250 ms. Its last entry travels with ``finish``, which is
repeated until it is acknowledged or the lease turns out to be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import LOG_EVERY_TOKENS
from headrace_contracts.pb.queue_pb2 import LogEntry
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.endings import worst
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import EngineWire, Logged, Settled

from headrace_engine.intake.book import NEVER
from headrace_engine.intake.columns import row_key
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held
from headrace_engine.intake.link import Link
from headrace_engine.intake.publisher import Publisher
from headrace_engine.intake.publisher_frames import (
    last_logprobs,
    log_entry,
    usage_message,
)
from headrace_engine.metrics import EngineMetrics

log = get_logger(__name__)

_AT_ONCE = 64
"""Requests of one round."""


class LogWriter:
    """Follows the publisher."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        model: str,
        engine: str,
        desk: Desk,
        publisher: Publisher,
        link: Link,
        metrics: EngineMetrics,
        clock: Clock,
    ) -> None:
        self._wire = wire
        self._model = model
        self._engine = engine
        self._desk = desk
        self._publisher = publisher
        self._link = link
        self._metrics = metrics
        self._clock = clock
        self._doubtful: set[Held] = set()
        """Requests whose last append may or may not have reached the server."""

    async def run(self) -> None:
        """Appends and settles until cancelled."""
        while True:
            await self._wait()
            try:
                await self.write(self._due())
                await self._settle()
            except TransportUnavailable as error:
                await self._link.failed(error)
                self._publisher.log_wake.set()

    async def write(self, due: Sequence[Held]) -> None:
        """Appends what the logs of ``due`` lack. Raises ``TransportUnavailable``."""
        batch = list(due[:_AT_ONCE])
        if len(due) > _AT_ONCE:
            self._publisher.log_wake.set()
        if not batch:
            return
        entries = [self._entry(held) for held in batch]
        self._doubtful.update(batch)
        results = await self._wire.append_logs(
            self._engine,
            [(held.id, held.attempt, entry) for held, entry in zip(batch, entries, strict=True)],
        )
        self._doubtful.difference_update(batch)
        self._link.succeeded()
        for held, entry, result in zip(batch, entries, results, strict=True):
            self._appended(held, entry, result)
        self._desk.book.shrink()

    async def _wait(self) -> None:
        """Until something is due."""
        due_s = float(self._desk.book.due.min()) - self._clock.monotonic()
        try:
            async with asyncio.timeout(None if due_s == NEVER else max(0.0, due_s)):
                await self._publisher.log_wake.wait()
        except TimeoutError:
            pass
        self._publisher.log_wake.clear()

    def _due(self) -> list[Held]:
        """Requests to log now, those that are over excepted: their last entry goes with ``finish``."""
        book = self._desk.book
        rows = np.flatnonzero(
            (book.due <= self._clock.monotonic()) | (book.ends - book.logged >= LOG_EVERY_TOKENS)
        )
        owners = dict.fromkeys(book.owner(row) for row in rows.tolist())
        for held in [held for held in owners if held.over or held.log_lost]:
            book.due[self._rows(held)] = NEVER
            del owners[held]
        return list(owners)

    def _entry(self, held: Held) -> LogEntry:
        frame_id = self._publisher.frame_ids.get(held.gateway, "")
        return log_entry(held, self._rows(held).tolist(), self._desk.book, frame_id)

    def _appended(self, held: Held, entry: LogEntry, result: Logged) -> None:
        if not result.ours:
            self._desk.let_go(held, "lost")
        if not self._desk.holdings.holds(held):
            return
        book = self._desk.book
        rows = self._rows(held)
        held.logged_prompt = True
        for choice, length in enumerate(result.lengths):
            if length < int(book.logged[rows[choice]]):
                # The log was cut behind our back: what it lost cannot be written again. Frames
                # still carry everything; the request only loses its resumability.
                held.log_lost = True
                log.warning("log.lost", id=held.id, choice=choice, length=length)
            book.appended(int(rows[choice]), length)
        for choice, items in held.unlogged_logprobs.items():
            left = int(book.ends[rows[choice]] - book.logged[rows[choice]])
            held.unlogged_logprobs[choice] = last_logprobs(items, left)
        for finish in entry.finishes:
            row = finish.row
            choice = entry.choices[row]
            # A row that did not continue the log was not written, its end neither.
            if result.lengths[choice] == entry.firsts[row] + entry.counts[row]:
                held.unlogged_ends.discard(choice)
        open_rows = rows[book.ends[rows] > book.logged[rows]]
        book.due[rows] = NEVER
        book.due[open_rows] = self._clock.monotonic()

    async def _settle(self) -> None:
        """Finishes what is over; raises ``TransportUnavailable`` after those that succeeded."""
        waiting = [held for held in self._publisher.over if self._desk.holdings.holds(held)]
        self._publisher.over = waiting
        if not waiting:
            return
        over = waiting[:_AT_ONCE]
        # An entry that does not continue the log is not written: first learn what the log holds.
        await self.write([held for held in over if held in self._doubtful])
        over = [held for held in over if self._desk.holdings.holds(held)]
        results = await asyncio.gather(*map(self._finish, over), return_exceptions=True)
        failure: TransportUnavailable | None = None
        for held, result in zip(over, results, strict=True):
            if isinstance(result, TransportUnavailable):
                failure = result
            elif isinstance(result, BaseException):
                raise result
            else:
                self._settled(held, result)
        if failure is not None:
            raise failure
        self._link.succeeded()
        if len(waiting) > _AT_ONCE:
            self._publisher.log_wake.set()

    async def _finish(self, held: Held) -> Settled:
        return await self._wire.finish(
            self._model,
            self._engine,
            held.id,
            held.attempt,
            entry=self._entry(held),
            reason=worst(FinishReason(finish.reason) for finish in held.ends.values()),
            usage=usage_message(held.usages.values()),
        )

    def _settled(self, held: Held, result: Settled) -> None:
        self._doubtful.discard(held)
        if not self._desk.holdings.holds(held):
            return
        reason = worst(FinishReason(finish.reason) for finish in held.ends.values())
        if result.ours:
            usage = usage_message(held.usages.values())
            self._metrics.finished.labels(reason.name.lower()).inc()
            self._metrics.request_time.observe(self._clock.monotonic() - held.claimed_s)
            log.info(
                "request.finished",
                id=held.id,
                attempt=held.attempt,
                reason=reason.name.lower(),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                queue_us=usage.engine_queue_us,
                prefill_us=usage.prefill_us,
                decode_us=usage.decode_us,
                trace_id=held.trace_id,
            )
        self._desk.settled(held, ours=result.ours)

    def _rows(self, held: Held) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        first = row_key(held.handle, 0)
        return self._desk.book.find(np.arange(first, first + held.choices, dtype=np.int64))
