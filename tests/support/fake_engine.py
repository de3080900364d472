"""An engine behind the door that a test steps by hand, and a bench with everything of intake around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Container
from dataclasses import dataclass, field

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb.queue_pb2 import Frame, RequestRecord
from headrace_engine.errors import EngineDraining
from headrace_engine.intake.service import Intake, IntakeSettings
from headrace_engine.intake.validate import Bounds
from headrace_engine.state.inbound import Cancel
from headrace_engine.state.metrics import ScheduleMetrics, WaitingChoice
from headrace_engine.state.outputs import (
    PassOutputs,
    RowEnd,
    RowLogprobs,
    RowStarted,
    SequenceUsage,
)
from headrace_engine.state.request import Request, RequestHandle
from headrace_kit.clock import Clock, SystemClock
from headrace_kit.metrics import Registry
from headrace_transport.interface import FIRST_FRAME
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.out_stream import OutStream
from support.waiting import eventually

MODEL = "m"


def token_of(attempt: int, choice: int, index: int) -> int:
    """What the fake engine decides: a token decided twice shows."""
    return attempt * 1000 + choice * 100 + index


@dataclass(slots=True)
class _Sequence:
    request: Request
    choice: int
    generated: int
    started: bool = False


class FakeEngine:
    """Implements ``IntakeDoor``. ``step`` runs one pass over everything that was pushed."""

    def __init__(self) -> None:
        self.pushed: list[Request] = []
        self.cancels: list[Cancel] = []
        self.waits: list[WaitingChoice] = []
        self.draining = False
        """Refuses requests."""
        self.passes = 0
        self._sequences: list[_Sequence] = []
        self._ends: dict[tuple[RequestHandle, int], FinishReason] = {}

    # the door
    def push(self, request: Request) -> None:
        """Takes a request; refuses once drained."""
        if self.draining:
            raise EngineDraining("closed")
        self.pushed.append(request)
        for choice in range(request.n):
            if choice not in request.finished:
                known = len(request.generated[choice]) if request.generated else 0
                self._sequences.append(_Sequence(request, choice, known))

    def cancel(self, cancel: Cancel) -> None:
        """Ends at the next step."""
        self.cancels.append(cancel)
        for sequence in self._sequences:
            if sequence.request.handle == cancel.handle and cancel.choice in (
                None,
                sequence.choice,
            ):
                self._ends.setdefault((cancel.handle, sequence.choice), cancel.reason)

    # the engine
    @property
    def resident(self) -> int:
        """Sequences inside."""
        return len(self._sequences)

    def snapshot(self) -> ScheduleMetrics:
        """The state after the last step."""
        return ScheduleMetrics(pass_id=self.passes, running=self.resident, waits=self.waits)

    def step(self) -> PassOutputs:
        """One pass: cancelled sequences end, all others get a token or reach their length."""
        self.passes += 1
        out = _Pass(self.passes)
        for sequence in list(self._sequences):
            request, choice = sequence.request, sequence.choice
            cancelled = self._ends.pop((request.handle, choice), None)
            out.add(sequence, decided=cancelled is None)
            done = sequence.generated >= request.sampling.max_new_tokens
            if cancelled is not None or done:
                out.end(sequence, cancelled or FinishReason.LENGTH)
                self._sequences.remove(sequence)
        return out.outputs()

    def fail(self, spared: Container[str] = ()) -> PassOutputs:
        """The last pass of an engine that breaks: everything ends with its code. ``spared`` are ids."""
        self.passes += 1
        out = _Pass(self.passes)
        for sequence in self._sequences:
            out.add(sequence, decided=False)
            out.end(
                sequence,
                FinishReason.ERROR,
                Code.ENGINE_FAILED,
                spared=sequence.request.id in spared,
            )
        self._sequences.clear()
        return out.outputs()


@dataclass(slots=True)
class _Pass:
    pass_id: int
    handles: list[int] = field(default_factory=list[int])
    choices: list[int] = field(default_factory=list[int])
    firsts: list[int] = field(default_factory=list[int])
    counts: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    ends: list[RowEnd] = field(default_factory=list[RowEnd])
    starts: list[RowStarted] = field(default_factory=list[RowStarted])
    logprobs: list[RowLogprobs] = field(default_factory=list[RowLogprobs])

    def add(self, sequence: _Sequence, *, decided: bool) -> None:
        request = sequence.request
        row = len(self.handles)
        self.handles.append(request.handle)
        self.choices.append(sequence.choice)
        self.firsts.append(sequence.generated)
        self.counts.append(int(decided))
        if not sequence.started and decided:
            sequence.started = True
            self.starts.append(RowStarted(row, len(request.prompt), 0, 0.01))
        if not decided:
            return
        self.tokens.append(token_of(request.attempt, sequence.choice, sequence.generated))
        if request.sampling.logprobs is not None:
            width = request.sampling.logprobs
            self.logprobs.append(
                RowLogprobs(
                    row,
                    np.array([-float(sequence.generated)], np.float32),
                    np.zeros((1, width), np.int32),
                    np.zeros((1, width), np.float32),
                )
            )
        sequence.generated += 1

    def end(
        self,
        sequence: _Sequence,
        reason: FinishReason,
        code: Code | None = None,
        *,
        spared: bool = False,
    ) -> None:
        usage = SequenceUsage(
            prompt_tokens=len(sequence.request.prompt),
            completion_tokens=sequence.generated,
            cached_tokens=0,
            queue_s=0.01,
            prefill_s=0.02,
            decode_s=0.03,
            preemptions=0,
        )
        self.ends.append(RowEnd(len(self.handles) - 1, reason, usage, code, spared=spared))

    def outputs(self) -> PassOutputs:
        return PassOutputs(
            pass_id=self.pass_id,
            handles=np.array(self.handles, np.int64),
            choices=np.array(self.choices, np.int32),
            firsts=np.array(self.firsts, np.int32),
            counts=np.array(self.counts, np.int32),
            tokens=np.array(self.tokens, np.int32),
            ends=self.ends,
            starts=self.starts,
            logprobs=self.logprobs,
        )


class IntakeBench:
    """Intake on the memory wire, with a fake engine behind it. Several may share a broker."""

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        engine: str = "engine-1",
        clock: Clock | None = None,
        slots: int = 8,
        max_waiting: int = 2,
        lease_ms: int = 600,
        stall_s: float = 60.0,
        buffer_tokens: int = 100_000,
        context_tokens: int = 4096,
    ) -> None:
        self.broker = broker
        self.gateway = MemoryGatewayWire(broker)
        self.wire = MemoryEngineWire(broker)
        self.fake = FakeEngine()
        self.registry = Registry("engine")
        self.drains: list[float | None] = []
        self.cards = 0
        self.intake = Intake(
            wire=self.wire,
            door=self.fake,
            engine=engine,
            bounds=Bounds(model=MODEL, vocabulary=1 << 20, context_tokens=context_tokens),
            settings=IntakeSettings(
                slots=slots,
                max_waiting=max_waiting,
                lease_ms=lease_ms,
                stall_s=stall_s,
                buffer_tokens=buffer_tokens,
            ),
            snapshot=self.fake.snapshot,
            registry=self.registry,
            clock=clock if clock is not None else SystemClock(),
            put_card=self._put_card,
            drain=self.drains.append,
        )

    async def _put_card(self) -> None:
        self.cards += 1

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Runs intake; what breaks in it breaks the test."""
        task = asyncio.ensure_future(self.intake.run())
        await self.intake.keeper.ready()
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def submit(self, record: RequestRecord) -> None:
        """Queues a record, as a gateway does."""
        await self.gateway.submit(record, max_queued=1000)

    async def pushed(self, count: int) -> None:
        """Waits until the engine got this many requests."""
        await eventually(lambda: len(self.fake.pushed) >= count)

    def step(self, passes: int = 1) -> None:
        """Runs passes and hands their outputs to io, as the signal thread does."""
        for _ in range(passes):
            self.intake.take([self.fake.step()])

    async def out(self) -> OutStream:
        """What the gateway of the requests makes of its out stream."""
        entries = await self.gateway.read_out("gw", FIRST_FRAME, block_ms=0)
        return OutStream([entry.item for entry in entries if entry.item is not None])

    async def logged(self, request: str, tokens: int) -> bool:
        """Whether the request's resume log holds so many tokens, or more."""
        entries = await self.gateway.read_log(request)
        return sum(len(entry.tokens) for _, entry in entries) >= tokens

    async def frames(self, gateway: str) -> list[Frame]:
        """The frames in a gateway's out stream."""
        entries = await self.gateway.read_out(gateway, FIRST_FRAME, block_ms=0)
        return [entry.item for entry in entries if isinstance(entry.item, Frame)]

    def value(self, name: str, **labels: str) -> float:
        """Present value of a metric."""
        for family in self.registry.families():
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        raise KeyError(name)
