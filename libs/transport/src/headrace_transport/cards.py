"""Model cards and the files they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import ModelCard

from headrace_transport.names import check_model
from headrace_transport.part import Part
from headrace_transport.replies import Argument, as_bytes, as_list, as_text


class CardReads(Part):
    """Cards as both ends read them."""

    async def card(self, model: str) -> ModelCard | None:
        """The card of a model, or None; also None for a version this process does not know."""
        reply = await self._server.command("GET", keys.card(check_model(model)))
        return self._card_of(as_bytes(reply)) if reply is not None else None

    async def cards(self) -> Sequence[ModelCard]:
        """Every model's card, by name."""
        names = [as_text(name) for name in as_list(await self._server.command(*_ALL))]
        if not names:
            return []
        reply = await self._server.command("MGET", *(keys.card(name) for name in sorted(names)))
        cards = (self._card_of(as_bytes(data)) for data in as_list(reply) if data is not None)
        return [card for card in cards if card is not None]

    async def blob(self, digest: str) -> bytes | None:
        """A file by its SHA-256 in hex, or None."""
        reply = await self._server.command("GET", keys.blob(digest))
        return as_bytes(reply) if reply is not None else None

    async def keep_blobs(self, model: str) -> None:
        """Gives the files that the model's card names their whole lifetime again."""
        card = await self.card(model)
        if card is not None and card.files:
            ttl_ms = self._server.options.blob_ttl_ms
            digests = [reference.removeprefix("sha256:") for reference in card.files.values()]
            await self._server.pipeline(
                [("PEXPIRE", keys.blob(digest), ttl_ms) for digest in digests]
            )

    def _card_of(self, data: bytes) -> ModelCard | None:
        card = ModelCard.FromString(data)
        return card if self.foreign.is_ours("card", card.version) else None


class CardWrites(CardReads):
    """Cards as the engine writes them."""

    async def put_card(self, card: ModelCard) -> None:
        """Stores a card; it stays when the engine goes."""
        name = check_model(card.model)
        await self._server.pipeline(
            [
                ("SET", keys.card(name), card.SerializeToString()),
                ("ZADD", keys.MODELS, "+inf", name),
            ]
        )

    async def put_weights(self, model: str, weights: Mapping[str, float]) -> None:
        """See ``EngineWire.put_weights``. A server that stops in between has none: all are alike."""
        key = keys.weights(check_model(model))
        commands: list[tuple[Argument, ...]] = [("DEL", key)]
        if weights:
            pairs = [part for tenant, weight in weights.items() for part in (tenant, repr(weight))]
            commands.append(("HSET", key, *pairs))
        await self._server.pipeline(commands)

    async def put_blob(self, data: bytes) -> str:
        """See ``EngineWire.put_blob``. A file that is there already is not sent again."""
        digest = sha256(data).hexdigest()
        ttl_ms = self._server.options.blob_ttl_ms
        if not await self._server.command("PEXPIRE", keys.blob(digest), ttl_ms):
            await self._server.command("SET", keys.blob(digest), data, "PX", ttl_ms)
        return digest


_ALL = ("ZRANGE", keys.MODELS, 0, -1)
