"""Leases of the processes themselves in memory, and the reaper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, Control, Drain, ModelCard

from headrace_transport.cards import digests_of
from headrace_transport.errors import RecordRejected
from headrace_transport.interface import EngineInfo
from headrace_transport.memory_broker import MemoryPart
from headrace_transport.memory_work import marks_of
from headrace_transport.names import check_model, check_process, name_of


class MemoryReaper(MemoryPart):
    """What both ends read of models and marks, and the reaper."""

    async def card(self, model: str) -> ModelCard | None:
        """The card of a model, or None."""
        await self._broker.enter()
        return self._known_card(self._broker.cards.get(check_model(model)))

    def _known_card(self, card: ModelCard | None) -> ModelCard | None:
        known = card is not None and self.foreign.is_ours("card", card.version)
        return card if known else None

    async def cancels(
        self, model: str, requests: Sequence[str]
    ) -> Mapping[str, Sequence[CancelMark]]:
        """See ``GatewayWire.cancels``."""
        await self._broker.enter()
        known = {request: self._broker.requests.get(request) for request in requests}
        return {
            request: marks_of(work)
            for request, work in known.items()
            if work is not None and work.marks
        }

    async def reap(self, model: str) -> None:
        """See ``EngineWire.reap``."""
        await self._broker.enter()
        broker, now = self._broker, self._broker.now_ms()
        if now - broker.failed_ms < broker.options.reap_after_outage_s * 1000:
            return
        grace = broker.options.resume_grace_ms
        dead = {name for name, expiry in broker.gateways.items() if expiry + grace <= now}
        work = broker.work(model)
        if work.sweep():
            work.bell.ring()
        stranded = work.stranded(lambda name: name in dead or name not in broker.gateways)
        expired, marked = work.expired(), work.marked()
        for name in dead:
            del broker.gateways[name]
            broker.outs.pop(name, None)
        for name, (_, expiry) in list(broker.engines.items()):
            if expiry <= now:
                del broker.engines[name]
                broker.controls.pop(name, None)
        for request in stranded:
            mark = CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED)
            broker.cancel(model, request, mark)
        for request in expired:
            broker.cancel(model, request, CancelMark(reason=codes_pb2.FINISH_REASON_DEADLINE))
        card = self._known_card(broker.cards.get(model))
        if card is not None:
            broker.keep_blobs(digests_of(card))
        for request, mark in marked.items():
            broker.cancel(model, request, mark)


class MemoryGatewayLeases(MemoryReaper):
    """What a gateway says and asks about processes."""

    async def engines(self, model: str) -> Sequence[EngineInfo]:
        """See ``GatewayWire.engines``."""
        await self._broker.enter()
        now = self._broker.now_ms()
        return [
            info
            for info, expiry in self._broker.engines.values()
            if info.model == model and expiry > now
        ]

    async def drain_engine(self, engine: str, *, grace_ms: int) -> bool:
        """See ``GatewayWire.drain_engine``."""
        await self._broker.enter()
        check_process("an engine", engine)
        known = self._broker.engines.get(engine)
        if known is None or known[1] <= self._broker.now_ms():
            return False
        entry = Control(version=WIRE_VERSION, drain=Drain(grace_ms=grace_ms))
        self._broker.control(engine).append(entry)
        return True

    async def take_sweep(self, gateway: str, *, ttl_ms: int) -> bool:
        """See ``GatewayWire.take_sweep``."""
        await self._broker.enter()
        check_process("a gateway", gateway)
        now, (owner, expiry) = self._broker.now_ms(), self._broker.sweeper
        if owner != gateway and expiry > now:
            return False
        self._broker.sweeper = (gateway, now + ttl_ms)
        return True

    async def beat_gateway(self, gateway: str, *, ttl_ms: int) -> None:
        """See ``GatewayWire.beat_gateway``."""
        await self._broker.enter()
        self._broker.gateways[check_process("a gateway", gateway)] = self._broker.now_ms() + ttl_ms

    async def leave_gateway(self, gateway: str, *, keep_ms: int = 0) -> None:
        """See ``GatewayWire.leave_gateway``."""
        if keep_ms:
            await self.beat_gateway(gateway, ttl_ms=keep_ms)
            return
        await self._broker.enter()
        self._broker.gateways.pop(gateway, None)
        self._broker.outs.pop(gateway, None)


class MemoryEngineLeases(MemoryReaper):
    """What an engine says about processes."""

    async def beat_engine(self, info: EngineInfo, *, ttl_ms: int) -> None:
        """See ``EngineWire.beat_engine``."""
        await self._broker.enter()
        name = check_process("an engine", info.process)
        self._broker.engines[name] = (info, self._broker.now_ms() + ttl_ms)

    async def leave_engine(self, info: EngineInfo) -> None:
        """See ``EngineWire.leave_engine``."""
        await self._broker.enter()
        self._broker.engines.pop(info.process, None)
        self._broker.controls.pop(info.process, None)

    async def supersede(self, model: str, engine: str) -> int:
        """See ``EngineWire.supersede``."""
        await self._broker.enter()
        name = name_of(engine)
        predecessors = {
            other
            for other, (info, _) in self._broker.engines.items()
            if other != engine and info.model == model and _is_named(other, name)
        }
        for other in predecessors:
            del self._broker.engines[other]
            self._broker.controls.pop(other, None)
        return self._broker.work(model).expire_leases(predecessors)


def _is_named(process: str, name: str) -> bool:
    try:
        return name_of(process) == name
    except RecordRejected:
        return False
