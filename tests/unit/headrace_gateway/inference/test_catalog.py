"""Models come, change and go without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_gateway.errors import BackendUnavailable, Internal, ModelNotFound, NoEngine
from headrace_gateway.inference.catalog import LOST_CARD_S, Catalog
from headrace_gateway.text.pipeline import TextPipeline
from headrace_transport.interface import EngineInfo
from headrace_transport.memory import MemoryEngineWire, MemoryGatewayWire
from headrace_transport.memory_broker import MemoryBroker
from support.clock import FakeClock
from support.wire import toy_card, toy_files


class Shop:
    """A catalog, its server, and how often text handling was built."""

    def __init__(self, *, cache_s: float = 2.0) -> None:
        self.clock = FakeClock()
        self.broker = MemoryBroker(clock=self.clock)
        self.engine = MemoryEngineWire(self.broker)
        self.built: list[str] = []
        self.threads = ThreadPoolExecutor(1)
        self.catalog = Catalog(
            MemoryGatewayWire(self.broker),
            self.clock,
            make_text=self.make,
            threads=self.threads,
            cache_s=cache_s,
        )

    def make(self, card: ModelCard, files: Mapping[str, bytes]) -> TextPipeline:
        """Builds, and notes it."""
        self.built.append(card.model)
        return TextPipeline.from_card(card, files)

    async def put(self, card: ModelCard) -> None:
        """A card with its files."""
        for data in toy_files().values():
            await self.engine.put_blob(data)
        await self.engine.put_card(card)

    async def beat(self, state: str, name: str = "e") -> None:
        """An engine in some state."""
        info = EngineInfo(name, "toy", state, 0, 0, 0, 0)  # type: ignore[arg-type]
        await self.engine.beat_engine(info, ttl_ms=10_000)


async def test_a_new_model_is_found_without_waiting_for_the_cache() -> None:
    shop = Shop(cache_s=60)
    await shop.put(toy_card("a"))
    assert (await shop.catalog.card("a")).model == "a"
    with pytest.raises(ModelNotFound, match="1 model known"):
        await shop.catalog.card("b")
    await shop.put(toy_card("b"))
    shop.clock.advance(0.3)
    assert (await shop.catalog.card("b")).model == "b"


async def test_unknown_names_do_not_make_a_reading_each() -> None:
    shop = Shop(cache_s=60)
    await shop.put(toy_card("a"))
    await shop.catalog.card("a")
    shop.broker.up = False  # a reading would fail
    with pytest.raises(ModelNotFound):
        await shop.catalog.card("nope")


async def test_text_handling_is_built_once_and_again_only_when_its_files_change() -> None:
    shop = Shop(cache_s=0)
    await shop.put(toy_card("a"))
    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(shop.catalog.model("a"))
    assert shop.built == ["a"]
    await shop.put(toy_card("a", weights_version="w2", pool_tokens=5))
    shop.clock.advance(1)
    first = await shop.catalog.model("a")
    assert shop.built == ["a"]
    await shop.put(toy_card("a", chat_template="new"))
    shop.clock.advance(1)
    await shop.catalog.model("a")
    assert shop.built == ["a", "a"]
    assert first.card.weights_version == "w2"


async def test_nothing_of_a_model_that_went_away_is_kept() -> None:
    shop = Shop(cache_s=0)
    await shop.put(toy_card("a"))
    await shop.catalog.model("a")
    await shop.catalog.engines("a")
    shop.broker.flush()
    shop.clock.advance(LOST_CARD_S + 1)
    assert not await shop.catalog.cards()
    kept = vars(shop.catalog)
    assert not any(kept[name] for name in ("_cards", "_engines", "_seen", "_texts"))


async def test_a_fingerprint_changes_with_the_weights_and_their_precision() -> None:
    shop = Shop(cache_s=0)
    seen: set[str] = set()
    for version, dtype in (("w1", "float32"), ("w2", "float32"), ("w1", "bfloat16")):
        await shop.put(toy_card("a", weights_version=version, dtype=dtype))
        shop.clock.advance(1)
        seen.add((await shop.catalog.model("a")).fingerprint)
    assert len(seen) == 3


async def test_a_tokenizer_that_is_not_there_yet_is_worth_another_try() -> None:
    shop = Shop()
    await shop.engine.put_card(toy_card("a"))
    with pytest.raises(BackendUnavailable) as caught:
        await shop.catalog.model("a")
    assert caught.value.retry_after_s


async def test_engines_that_drain_do_not_count_and_a_first_one_counts_at_once() -> None:
    shop = Shop(cache_s=60)
    assert not await shop.catalog.engines("toy")
    await shop.beat("draining")
    assert not await shop.catalog.engines("toy")
    await shop.beat("loading", "e2")
    assert [engine.process for engine in await shop.catalog.engines("toy")] == ["e2"]


async def test_without_the_server_it_says_so() -> None:
    shop = Shop()
    shop.broker.up = False
    with pytest.raises(BackendUnavailable):
        await shop.catalog.cards()


async def test_a_model_whose_card_was_lost_a_moment_ago_is_worth_another_try() -> None:
    shop = Shop(cache_s=0)
    await shop.put(toy_card("a"))
    await shop.catalog.card("a")
    shop.broker.flush()
    shop.clock.advance(59)
    with pytest.raises(NoEngine) as caught:
        await shop.catalog.card("a")
    assert caught.value.retry_after_s
    shop.clock.advance(1)
    with pytest.raises(ModelNotFound):
        await shop.catalog.card("a")


async def test_it_is_cold_until_the_first_model_can_be_asked_without_a_wait() -> None:
    shop = Shop(cache_s=0)
    assert not await shop.catalog.cold()  # no model: nothing to wait for
    await shop.put(toy_card("a"))
    shop.clock.advance(1)
    assert await shop.catalog.cold()
    await shop.catalog.warm()
    assert not await shop.catalog.cold()
    await shop.put(toy_card("b"))
    shop.clock.advance(1)
    assert not await shop.catalog.cold()  # the others can be asked meanwhile
    await shop.catalog.warm()
    assert shop.built == ["a", "b"]


async def test_the_first_model_is_built_at_once_though_cards_are_trusted_for_long() -> None:
    shop = Shop(cache_s=60)
    await shop.catalog.warm()
    assert shop.catalog.empty
    await shop.put(toy_card("a"))
    shop.clock.advance(0.1)
    await shop.catalog.warm()
    assert shop.built == ["a"]
    assert not shop.catalog.empty


async def test_a_tokenizer_that_cannot_be_used_is_tried_once_and_harms_no_other_model() -> None:
    shop = Shop(cache_s=0)
    digest = await shop.engine.put_blob(b"no tokenizer at all")
    broken = toy_card("broken")
    broken.files["tokenizer.json"] = f"sha256:{digest}"
    await shop.engine.put_card(broken)
    await shop.put(toy_card("good"))
    for _ in range(3):
        await shop.catalog.warm()
        with pytest.raises(Internal):
            await shop.catalog.model("broken")
    assert shop.built == ["broken", "good"]
    assert (await shop.catalog.model("good")).card.model == "good"
