"""The wires in memory: both ends, composed; any number of one event loop share a ``MemoryBroker``.

Same semantics as over Redis, time by an injected clock. For tests: its steps cost O(requests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import inf

from headrace_contracts.pb.queue_pb2 import Control, ModelCard

from headrace_transport.cards import digests_of
from headrace_transport.interface import FrameId, OutEntry
from headrace_transport.memory_keys import MemoryKeys
from headrace_transport.memory_leases import MemoryLeases
from headrace_transport.memory_processes import MemoryEngineLeases, MemoryGatewayLeases
from headrace_transport.memory_requests import MemoryRequests
from headrace_transport.names import check_model, check_process


class MemoryGatewayWire(MemoryRequests, MemoryGatewayLeases, MemoryKeys):
    """Implements ``GatewayWire``."""

    async def read_out(self, gateway: str, after: FrameId, *, block_ms: int) -> Sequence[OutEntry]:
        """See ``GatewayWire.read_out``."""
        await self._broker.enter()
        entries = await self._broker.out(gateway).read(after, block_ms=block_ms)
        return [OutEntry(id=FrameId(name), item=self._known(item)) for name, item in entries]

    async def trim_out(self, gateway: str, below: FrameId) -> None:
        """See ``GatewayWire.trim_out``."""
        await self._broker.enter()
        self._broker.out(gateway).trim(below)

    async def cards(self) -> Sequence[ModelCard]:
        """See ``GatewayWire.cards``."""
        await self._broker.enter()
        cards = (self._known_card(self._broker.cards[name]) for name in sorted(self._broker.cards))
        return [card for card in cards if card is not None]

    async def blob(self, digest: str) -> bytes | None:
        """See ``GatewayWire.blob``."""
        await self._broker.enter()
        return self._broker.blob(digest)


class MemoryEngineWire(MemoryLeases, MemoryEngineLeases):
    """Implements ``EngineWire``."""

    async def read_control(
        self, engine: str, after: str, *, block_ms: int
    ) -> Sequence[tuple[str, Control | None]]:
        """See ``EngineWire.read_control``."""
        await self._broker.enter()
        stream = self._broker.control(check_process("an engine", engine))
        return [
            (name, control if self.foreign.is_ours("control", control.version) else None)
            for name, control in await stream.read(after, block_ms=block_ms)
        ]

    async def card(self, model: str) -> ModelCard | None:
        """See ``EngineWire.card``."""
        card = await super().card(model)
        lost = card is not None and any(
            self._broker.blob(each) is None for each in digests_of(card)
        )
        return None if lost else card

    async def put_card(self, card: ModelCard) -> None:
        """See ``EngineWire.put_card``."""
        await self._broker.enter()
        broker, name = self._broker, check_model(card.model)
        before = self._known_card(broker.cards.get(name))
        broker.cards[name] = ModelCard.FromString(card.SerializeToString())
        broker.keep_blobs(digests_of(card))
        if before is not None:
            named = {digest for each in broker.cards.values() for digest in digests_of(each)}
            broker.keep_blobs(digests_of(before) - named, ttl_ms=broker.options.blob_ttl_ms)

    async def put_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """See ``EngineWire.put_weights``."""
        await self._broker.enter()
        self._broker.work(check_model(model)).weights = dict(weights)

    async def put_blob(self, data: bytes) -> str:
        """See ``EngineWire.put_blob``."""
        await self._broker.enter()
        digest = sha256(data).hexdigest()
        broker = self._broker
        _, expiry = broker.blobs.get(digest, (data, 0.0))
        if expiry != inf:
            broker.blobs[digest] = (data, broker.now_ms() + broker.options.blob_ttl_ms)
        return digest
