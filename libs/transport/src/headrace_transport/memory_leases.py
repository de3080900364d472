"""Work and its leases in memory, from the engine's side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, Usage

from headrace_transport.claims import Claims, Taken
from headrace_transport.engine_end import EngineEnd
from headrace_transport.interface import Claimed, FrameId, Logged, OutEntry, Renewed, Settled
from headrace_transport.memory_broker import MemoryBroker, MemoryPart
from headrace_transport.memory_work import append_log
from headrace_transport.names import check_process


class MemoryLeases(MemoryPart, EngineEnd):
    """The engine's requests. Implements ``ClaimSteps``."""

    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._claims = Claims(self, self.foreign)

    async def wait_bell(self, model: str, *, timeout_ms: int) -> bool:
        """See ``EngineWire.wait_bell``."""
        await self._broker.enter()
        return await self._broker.work(model).bell.wait(timeout_ms=timeout_ms)

    async def claim(
        self, model: str, engine: str, *, credit: int, lease_ms: int
    ) -> Sequence[Claimed]:
        """See ``EngineWire.claim``."""
        check_process("an engine", engine)
        return await self._claims.claim(model, engine, credit=credit, lease_ms=lease_ms)

    async def renew(
        self, model: str, engine: str, attempts: Mapping[str, int], *, lease_ms: int
    ) -> Renewed:
        """See ``EngineWire.renew``."""
        await self._broker.enter()
        lost, cancelled = self._broker.work(model).renew(engine, attempts, lease_ms=lease_ms)
        return Renewed(lost=lost, cancelled=cancelled)

    async def release(self, model: str, engine: str, attempts: Mapping[str, int]) -> None:
        """See ``EngineWire.release``."""
        await self._broker.enter()
        self._broker.work(model).release(engine, attempts)

    async def finish(
        self,
        model: str,
        engine: str,
        request: str,
        attempt: int,
        *,
        entry: LogEntry,
        reason: FinishReason,
        usage: Usage,
    ) -> Settled:
        """See ``EngineWire.finish``."""
        await self._broker.enter()
        ours = self._broker.work(model).finish(
            engine, request, attempt, entry=entry, reason=reason, usage=usage
        )
        return Settled(ours=ours)

    async def _append(
        self, engine: str, entries: Sequence[tuple[str, int, LogEntry]]
    ) -> Sequence[Logged]:
        await self._broker.enter()
        return [
            append_log(self._broker.requests.get(request), engine, attempt, entry)
            for request, attempt, entry in entries
        ]

    # steps of a claim
    async def take(self, model: str, engine: str, *, credit: int, lease_ms: int) -> Sequence[Taken]:
        """See ``ClaimSteps.take``."""
        await self._broker.enter()
        calm = self._broker.now_ms() - self._broker.failed_ms >= lease_ms / 2
        return self._broker.work(model).take(engine, credit=credit, lease_ms=lease_ms, sweep=calm)

    async def post(self, entries: Sequence[tuple[str, Frame | Fence]]) -> Sequence[FrameId | None]:
        """See ``ClaimSteps.post``."""
        await self._broker.enter()
        return [self._broker.post(gateway, item) for gateway, item in entries]

    async def log_of(self, request: str) -> Sequence[LogEntry]:
        """See ``ClaimSteps.log_of``."""
        await self._broker.enter()
        log = self._broker.log(request)
        return [entry for _, entry in log.after("0-0")] if log is not None else []

    async def frames_of(
        self, gateway: str, after: FrameId, before: FrameId | None
    ) -> Sequence[OutEntry]:
        """See ``ClaimSteps.frames_of``."""
        await self._broker.enter()
        stream = self._broker.outs.get(gateway)
        entries = stream.after(after, before) if stream is not None else []
        return [OutEntry(id=FrameId(name), item=self._known(item)) for name, item in entries]

    async def bury(
        self, model: str, engine: str, request: str, attempt: int, *, why: str, usage: Usage
    ) -> Settled:
        """See ``ClaimSteps.bury``."""
        await self._broker.enter()
        ours = self._broker.work(model).bury(engine, request, attempt, why=why, usage=usage)
        return Settled(ours=ours)
