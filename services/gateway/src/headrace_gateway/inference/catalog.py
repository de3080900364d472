"""Which models there are, who serves them, and the text handling of each.

Cards, not engines, say what a model is, so the gateway answers with no engine at hand.
Next: headrace_gateway.inference.service
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.interface import EngineInfo, GatewayWire

from headrace_gateway.errors import (
    BACKEND_RETRY_S,
    BackendUnavailable,
    Internal,
    ModelNotFound,
    NoEngine,
    transport_errors,
)
from headrace_gateway.inference.calls import Prompt
from headrace_gateway.inference.session import ChoiceText

log = get_logger(__name__)

LOST_CARD_S: Final = 60.0
"""How long a model whose card vanished is still taken for one."""
REREAD_S: Final = 0.05
"""A name that is not known has the cards read again, but no more often than this."""


class ModelText(Protocol):
    """Text handling of one model; ``headrace_gateway.text.pipeline.TextPipeline`` is one."""

    def prompt_ids(self, prompt: Prompt, fields: Mapping[str, object] = ...) -> list[int]: ...

    def choice(
        self,
        *,
        stop: Sequence[str] = (),
        stop_token_ids: Collection[int] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> ChoiceText: ...

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str: ...


MakeText = Callable[[ModelCard, Mapping[str, bytes]], ModelText]


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be asked."""

    card: ModelCard
    text: ModelText

    @property
    def fingerprint(self) -> str:
        """Changes when the weights or their precision do."""
        digest = blake2b(digest_size=5)
        for part in (self.card.model, self.card.weights_version, self.card.dtype):
            digest.update(len(part).to_bytes(4, "little") + part.encode())
        return f"fp_{digest.hexdigest()}"


class Catalog:
    """Cards and engines, remembered for a short while; text handling, for as long as it fits."""

    def __init__(
        self,
        wire: GatewayWire,
        clock: Clock,
        *,
        make_text: MakeText,
        threads: Executor,
        cache_s: float,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._make_text = make_text
        self._threads = threads
        self._cache_s = cache_s
        self._cards: dict[str, ModelCard] = {}
        self._cards_at: float | None = None
        self._reading = asyncio.Lock()
        self._engines: dict[str, tuple[float, Sequence[EngineInfo]]] = {}
        self._texts: dict[str, tuple[bytes, ModelText | Internal]] = {}
        """By model: what it was built of, and the outcome."""
        self._making = asyncio.Lock()
        self._seen: dict[str, float] = {}
        """By model: monotonic seconds at which its card was last there."""

    async def cards(self, *, older_than_s: float | None = None) -> Mapping[str, ModelCard]:
        """Every card by model name, at most ``older_than_s`` old (the cache's time if None).

        Raises ``BackendUnavailable``.
        """
        limit = self._cache_s if older_than_s is None else older_than_s
        async with self._reading:  # one reading serves all who wait for it
            now = self._clock.monotonic()
            if self._cards_at is None or now - self._cards_at > limit:
                with transport_errors():
                    cards = await self._wire.cards()
                self._cards = {card.model: card for card in cards}
                self._cards_at = now
                self._seen = {
                    name: at for name, at in self._seen.items() if now - at < LOST_CARD_S
                } | dict.fromkeys(self._cards, now)
                for known in (self._texts, self._engines):
                    for name in known.keys() - self._seen.keys():
                        del known[name]
            return self._cards

    async def card(self, name: str) -> ModelCard:
        """The card of ``name``. Raises ``ModelNotFound`` and ``BackendUnavailable``.

        A model that was there a moment ago is not gone: the server lost its cards, and the next
        engine puts its own again. That is a ``NoEngine``, worth another try.
        """
        cards = await self.cards()
        if name not in cards:
            cards = await self.cards(older_than_s=min(REREAD_S, self._cache_s))
        if name in cards:
            return cards[name]
        if self._clock.monotonic() - self._seen.get(name, -math.inf) < LOST_CARD_S:
            raise NoEngine(f"No engine serves {name!r} now.", retry_after_s=BACKEND_RETRY_S)
        raise ModelNotFound(name, known=len(cards))

    async def model(self, name: str) -> Model:
        """``name``, ready to be asked. Its text handling is built at the first call."""
        card = await self.card(name)
        return Model(card, await self._text(card))

    async def engines(self, name: str) -> Sequence[EngineInfo]:
        """Engines that take requests of ``name``, or soon will: those that drain do not."""
        now = self._clock.monotonic()
        at, known = self._engines.get(name, (0.0, ()))
        # an empty list is not remembered: the first engine counts at once
        if not known or now - at > self._cache_s:
            with transport_errors():
                found = await self._wire.engines(name)
            known = [engine for engine in found if engine.state != "draining"]
            self._engines[name] = (now, known)
        return known

    @property
    def empty(self) -> bool:
        """Whether no model has been looked at yet."""
        return not self._texts

    async def warm(self) -> None:
        """Builds the text handling of every model that has none yet, so that no call waits for it.

        The first model's card is seen at once. Raises ``BackendUnavailable``.
        """
        limit = min(REREAD_S, self._cache_s) if self.empty else None
        for card in list((await self.cards(older_than_s=limit)).values()):
            try:
                await self._text(card)
            except Internal as error:
                log.debug("model.unusable", model=card.model, reason=error.message)

    async def cold(self) -> bool:
        """Whether there are models, and none of them can be asked without a wait."""
        if not self.empty:
            return False
        return bool(await self.cards(older_than_s=min(REREAD_S, self._cache_s)))

    async def _text(self, card: ModelCard) -> ModelText:
        """Built once for what it depends on; a failure is remembered as well."""
        key = _text_key(card)
        of, made = self._texts.get(card.model, (b"", None))
        if made is None or of != key:
            async with self._making:
                of, made = self._texts.get(card.model, (b"", None))
                if made is None or of != key:
                    made = await self._build(card)
                    self._texts[card.model] = (key, made)
        if isinstance(made, Internal):
            raise made
        return made

    async def _build(self, card: ModelCard) -> ModelText | Internal:
        files = await self._files(card)
        loop = asyncio.get_running_loop()
        try:
            made = await loop.run_in_executor(self._threads, self._make_text, card, files)
        except Internal as error:
            log.error("model.unusable", model=card.model, reason=error.message)
            return error
        log.info("model.usable", model=card.model, weights=card.weights_version)
        return made

    async def _files(self, card: ModelCard) -> Mapping[str, bytes]:
        files: dict[str, bytes] = {}
        for name, reference in card.files.items():
            with transport_errors():
                data = await self._wire.blob(reference.removeprefix("sha256:"))
            if data is None:
                raise BackendUnavailable(
                    f"The tokenizer of {card.model!r} is not there yet.",
                    retry_after_s=BACKEND_RETRY_S,
                )
            files[name] = data
        return files


def _text_key(card: ModelCard) -> bytes:
    """What the text handling depends on: the card without what changes at each start."""
    relevant = ModelCard()
    relevant.CopyFrom(card)
    for name in ("created", "pool_tokens", "weights_version", "dtype"):
        relevant.ClearField(name)
    return relevant.SerializeToString(deterministic=True)
