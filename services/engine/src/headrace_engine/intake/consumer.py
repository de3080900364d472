"""Consumer: claims what the engine has room for, and turns each claimed record into a request.

Owner    io thread
Writes   Holdings, through the desk
Never    claims without credit or for a stuck engine; starts a choice that was delivered to its end
Rules    intake.credit, request.one-terminal-status
Next     headrace_engine.intake.validate
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import MAX_CHOICES
from headrace_contracts.pb.queue_pb2 import RowFinish
from headrace_contracts.pb.queue_pb2 import Usage as UsageMessage
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_kit.traces import trace_id_of
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import Claimed, EngineWire

from headrace_engine.errors import EngineDraining, RequestRejected
from headrace_engine.intake.columns import Rows, row_key
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.held import Held
from headrace_engine.intake.lease import Progress
from headrace_engine.intake.link import Link
from headrace_engine.intake.publisher import Publisher
from headrace_engine.intake.publisher_frames import unspent
from headrace_engine.intake.validate import Bounds, validate
from headrace_engine.metrics import EngineMetrics
from headrace_engine.state.outputs import RowEnd, SequenceUsage

log = get_logger(__name__)

_BELL_MS = 1000


class Consumer:
    """The only one that claims."""

    def __init__(
        self,
        *,
        wire: EngineWire,
        engine: str,
        bounds: Bounds,
        desk: Desk,
        publisher: Publisher,
        link: Link,
        progress: Progress,
        metrics: EngineMetrics,
        clock: Clock,
        lease_ms: int,
    ) -> None:
        self._wire = wire
        self._engine = engine
        self._bounds = bounds
        self._desk = desk
        self._publisher = publisher
        self._link = link
        self._progress = progress
        self._metrics = metrics
        self._clock = clock
        self._lease_ms = lease_ms
        self._bell_ms = min(_BELL_MS, lease_ms // 2)
        self._claiming = asyncio.Lock()
        self._stopped = False

    async def run(self) -> None:
        """Claims until stopped or cancelled."""
        while not self._stopped:
            await self._room()
            try:
                if not await self._claim():
                    # Also when it did not ring: expired leases ring no bell.
                    await self._wire.wait_bell(self._bounds.model, timeout_ms=self._bell_ms)
            except TransportUnavailable as error:
                await self._link.failed(error)

    async def stop(self) -> None:
        """No further claim; returns when the one under way is taken in."""
        self._stopped = True
        async with self._claiming:
            pass

    async def _room(self) -> None:
        """Waits until something can be held, by an engine that moves."""
        while not self._progress.alive:  # noqa: ASYNC110 - standing still raises no event
            await asyncio.sleep(self._bell_ms / 1000)
        while self._desk.holdings.credit <= 0:
            self._desk.room.clear()
            await self._desk.room.wait()

    async def _claim(self) -> bool:
        """Whether there may be more to claim at once."""
        async with self._claiming:
            if self._stopped:
                return False
            credit = self._desk.holdings.credit
            claimed = await self._wire.claim(
                self._bounds.model, self._engine, credit=credit, lease_ms=self._lease_ms
            )
            self._link.succeeded()
            for item in claimed:
                self.take(item)
        return len(claimed) >= credit

    def take(self, claimed: Claimed) -> None:
        """Takes one claimed request in, and starts or refuses it."""
        if claimed.crashes:
            log.warning(
                "request.taken_over",
                id=claimed.record.id,
                crashes=claimed.crashes,
                trace_id=trace_id_of(claimed.record.traceparent),
            )
        self._start(self._open(claimed), claimed)

    def _open(self, claimed: Claimed) -> Held:
        record = claimed.record
        stale = self._desk.holdings.get(record.id)
        if stale is not None:  # our own lease expired, and we were the one to take it over
            self._desk.let_go(stale, "lost")
        held = Held(
            record=record,
            choices=record.n if 1 <= record.n <= MAX_CHOICES else 1,
            attempt=claimed.attempt,
            handle=self._desk.holdings.next_handle(),
            claimed_s=self._clock.monotonic(),
            gateway=record.gateway,
            slot=record.slot,
            logged_prompt=claimed.attempt > 1,
        )
        for choice, entry in claimed.ended.items():
            if choice < held.choices and entry.finishes:
                held.ends[choice] = _of_choice(entry.finishes[-1], choice)
                held.usages[choice] = _usage(entry.finishes[-1].usage)
        held.ended_before = frozenset(held.ends)
        self._desk.open(held, [len(tokens) for tokens in _delivered(claimed, held)])
        return held

    def _start(self, held: Held, claimed: Claimed) -> None:
        """Validates and pushes; what cannot run gets its terminal status here."""
        try:
            request = validate(
                claimed.record,
                self._bounds,
                handle=held.handle,
                attempt=held.attempt,
                delivered=_delivered(claimed, held),
                ended=held.ends.keys(),
                now_s=self._clock.monotonic(),
                now_ms=self._clock.wall_ms(),
            )
            self._desk.push(held, request)
        except RequestRejected as error:
            self._refuse(held, claimed, error)
            return
        except EngineDraining:
            return  # held but never started: the drain hands it back
        self._desk.cancel_marked(held.id, claimed.cancels)

    def _refuse(self, held: Held, claimed: Claimed, error: RequestRejected) -> None:
        self._metrics.refused.labels(error.code.wire_name).inc()
        log.info(
            "request.refused",
            id=held.id,
            code=error.code.wire_name,
            message=str(error),
            trace_id=held.trace_id,
        )
        late = error.code is Code.DEADLINE_EXCEEDED
        reason = FinishReason.DEADLINE if late else FinishReason.ERROR
        lengths = [len(tokens) for tokens in _delivered(claimed, held)]
        choices = [choice for choice in range(held.choices) if choice not in held.ends]
        prompt = len(held.record.prompt)
        self._publisher.offer(
            Rows(
                pass_id=0,
                keys=np.array([row_key(held.handle, choice) for choice in choices], np.int64),
                firsts=np.array([lengths[choice] for choice in choices], np.int32),
                counts=np.zeros(len(choices), np.int32),
                tokens=np.empty(0, np.int32),
                ends=[
                    (
                        row,
                        RowEnd(
                            row, reason, unspent(prompt, lengths[choice]), error.code, str(error)
                        ),
                    )
                    for row, choice in enumerate(choices)
                ],
            )
        )


def _delivered(claimed: Claimed, held: Held) -> list[Sequence[int]]:
    """What earlier attempts delivered, for each choice."""
    known = list(claimed.delivered)[: held.choices]
    return known + [()] * (held.choices - len(known))


def _of_choice(finish: RowFinish, choice: int) -> RowFinish:
    copy = RowFinish()
    copy.CopyFrom(finish)
    copy.row = choice
    return copy


def _usage(usage: UsageMessage) -> SequenceUsage:
    return SequenceUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        queue_s=usage.engine_queue_us / 1e6,
        prefill_s=usage.prefill_us / 1e6,
        decode_s=usage.decode_us / 1e6,
        preemptions=usage.preemptions,
    )
