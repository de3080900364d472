"""Model cards and the files they name. A file stays while a card names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from hashlib import sha1, sha256

from headrace_contracts import keys
from headrace_contracts.pb.queue_pb2 import ModelCard

from headrace_transport.names import check_model
from headrace_transport.part import Part
from headrace_transport.replies import Argument, Reply, as_bytes, as_int, as_list, as_text, readable


class CardReads(Part):
    """Cards as both ends read them."""

    async def card(self, model: str) -> ModelCard | None:
        """The card of a model, or None; also None for a version this process does not know."""
        reply = await self._server.command("GET", keys.card(check_model(model)))
        return self._card_of(as_bytes(reply)) if reply is not None else None

    async def cards(self) -> Sequence[ModelCard]:
        """Every model's card that can be read, by name."""
        names: list[str] = []
        for name in await self._listed():
            with self.damaged.skipped("card", repr(name)):
                names.append(as_text(name))
        found: list[ModelCard] = []
        for name, data in (await self._data_of(sorted(names))).items():
            with self.damaged.skipped("card", name):
                if data and (card := self._card_of(data)) is not None:
                    found.append(card)
        return found

    async def blob(self, digest: str) -> bytes | None:
        """A file by its SHA-256 in hex, or None."""
        reply = await self._server.command("GET", keys.blob(digest))
        return as_bytes(reply) if reply is not None else None

    async def keep_blobs(self, model: str) -> None:
        """Files that the model's card names end no more, whatever made them end."""
        data = as_bytes(await self._server.command("GET", keys.card(check_model(model))) or b"")
        card = self._card_of(data) if data else None
        if card is not None and card.files:
            await self._touch({model: data}, digests_of(card), ttl_ms=None, all_cards=False)

    def _card_of(self, data: bytes) -> ModelCard | None:
        card = _parsed(data)
        return card if self.foreign.is_ours("card", card.version) else None

    async def _listed(self) -> list[Reply]:
        """Names of the models that have cards."""
        return as_list(await self._server.command("ZRANGE", keys.MODELS, 0, -1))

    async def _data_of(self, names: Sequence[str]) -> dict[str, bytes]:
        """Models' cards as they were written; empty where there is none."""
        if not names:
            return {}
        reply = as_list(await self._server.command("MGET", *map(keys.card, names)))
        return {name: as_bytes(data or b"") for name, data in zip(names, reply, strict=True)}

    async def _touch(
        self, cards: Mapping[str, bytes], digests: Set[str], *, ttl_ms: int | None, all_cards: bool
    ) -> bool:
        """Gives files a lifetime or, None, takes it away; False, and nothing done, if a card is
        another by now, or, with ``all_cards``, if there are more or fewer.
        """
        return bool(
            as_int(
                await self._server.run(
                    "touch_files",
                    [*map(keys.card, cards), *map(keys.blob, sorted(digests))],
                    [
                        *(len(cards), ttl_ms or 0, keys.MODELS if all_cards else ""),
                        *(sha1(data, usedforsecurity=False).hexdigest() for data in cards.values()),
                    ],
                )
            )
        )


class CardWrites(CardReads):
    """Cards as the engine writes them."""

    async def card(self, model: str) -> ModelCard | None:
        """See ``EngineWire.card``. One that is not listed with the others is none, nor is one of
        whose files the server has lost any.
        """
        listed = await self._server.command("ZSCORE", keys.MODELS, check_model(model))
        if listed is None:
            return None
        with self.damaged.skipped("card", model):
            card = await super().card(model)
            if card is not None and await self._are_there(digests_of(card)):
                return card
        return None

    async def _are_there(self, digests: Set[str]) -> bool:
        kinds = await self._server.pipeline([("TYPE", keys.blob(digest)) for digest in digests])
        return all(kind == b"string" for kind in kinds)

    async def put_card(self, card: ModelCard) -> None:
        """See ``EngineWire.put_card``. What the card before named and no card names now ends, also
        where several engines put cards at once.
        """
        name = check_model(card.model)
        before = await self._server.run(
            "put_card",
            [keys.card(name), keys.MODELS, *map(keys.blob, sorted(digests_of(card)))],
            [name, card.SerializeToString()],
        )
        with self.damaged.skipped("card", name):
            if before is not None:
                await self._let_end(digests_of(_parsed(as_bytes(before))) - digests_of(card))

    async def _let_end(self, digests: Set[str]) -> None:
        """Files that no card names end in time. Raises ``CommandFailed`` where a card cannot be
        read: any of them may be its.
        """
        ended = not digests
        while not ended:  # again only if another engine's card came in between
            names = [as_text(name) for name in await self._listed()]
            cards = await self._data_of(names)
            named = {
                digest for data in cards.values() if data for digest in digests_of(_parsed(data))
            }
            ttl_ms = self._server.options.blob_ttl_ms
            ended = await self._touch(cards, digests - named, ttl_ms=ttl_ms, all_cards=True)

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
        _, kind = await self._server.pipeline([("PEXPIRE", name, ttl_ms, "XX"), ("TYPE", name)])
        if kind != b"string":
            await self._server.command("SET", name, data, "PX", ttl_ms)
            if kind != b"none":
                self.damaged.replaced(name, as_text(kind))
        return digest


def digests_of(card: ModelCard) -> set[str]:
    """SHA-256 in hex of each file that a card names."""
    return {reference.removeprefix("sha256:") for reference in card.files.values()}


def _parsed(data: bytes) -> ModelCard:
    """Of any version."""
    with readable("a model's card"):
        return ModelCard.FromString(data)
