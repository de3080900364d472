"""Model cards and the files they name. A file stays while a card names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from hashlib import sha256

from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import ModelCard

from headrace_transport.names import check_model
from headrace_transport.part import Part
from headrace_transport.replies import Argument, as_bytes, as_int, as_list, as_text, readable


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
        """Files that the model's card names end no more, whatever made them end."""
        card = await self.card(model)
        if card is not None and card.files:
            await self._server.pipeline(_stay(digests_of(card)))

    def _card_of(self, data: bytes) -> ModelCard | None:
        with readable("a model's card"):
            card = ModelCard.FromString(data)
        return card if self.foreign.is_ours("card", card.version) else None


class CardWrites(CardReads):
    """Cards as the engine writes them."""

    async def put_card(self, card: ModelCard) -> None:
        """See ``EngineWire.put_card``. Of two engines at once, one may let a file end that the other
        names: sweeps make it stay again.
        """
        name = check_model(card.model)
        before = await self.card(name)
        await self._server.pipeline(
            [
                ("SET", keys.card(name), card.SerializeToString()),
                ("ZADD", keys.MODELS, "+inf", name),
                *_stay(digests_of(card)),
            ]
        )
        if before is not None and digests_of(before) - digests_of(card):
            named = {digest for each in await self.cards() for digest in digests_of(each)}
            ttl_ms = self._server.options.blob_ttl_ms
            await self._server.pipeline(
                [
                    ("PEXPIRE", keys.blob(digest), ttl_ms)
                    for digest in sorted(digests_of(before) - named)
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
        name, ttl_ms = keys.blob(digest), self._server.options.blob_ttl_ms
        # XX: what a card names has no end, and gets none.
        _, there = await self._server.pipeline(
            [("PEXPIRE", name, ttl_ms, "XX"), ("EXISTS", name)],
        )
        if not as_int(there):
            await self._server.command("SET", name, data, "PX", ttl_ms)
        return digest


def digests_of(card: ModelCard) -> set[str]:
    """SHA-256 in hex of each file that a card names."""
    return {reference.removeprefix("sha256:") for reference in card.files.values()}


def _stay(digests: Set[str]) -> list[tuple[Argument, ...]]:
    return [("PERSIST", keys.blob(digest)) for digest in sorted(digests)]


_ALL = ("ZRANGE", keys.MODELS, 0, -1)
