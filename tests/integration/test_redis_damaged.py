"""Records that somebody damaged on the server: what lists them with others goes on without them."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from headrace_cli.errors import CommandFailed as CliFailed
from headrace_cli.keys import KeyPlace, export
from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.intake.desk import Desk
from headrace_engine.intake.lease import LeaseKeeper, Load, Progress
from headrace_engine.intake.link import Link
from headrace_engine.loading import LoadedModel, fit, publish_card
from headrace_engine.settings import EngineSettings
from headrace_engine.threads import beside
from headrace_gateway.auth.keys import KeyStore
from headrace_kit.clock import SystemClock
from headrace_transport.address import Access
from headrace_transport.connection import (
    RedisEngineWire,
    RedisGatewayWire,
)
from headrace_transport.errors import CommandFailed
from headrace_transport.server import Server
from structlog.testing import capture_logs
from support.processes import PEPPER
from support.redis import RedisServer
from support.served import clean_environ, headrace
from support.waiting import eventually
from support.wire import CALLER, MODEL, Gateway, ScriptedEngine, call, texts
from support.wire import read as read_events

JUNK = b"\xff\x00junk"
OTHER = "other"
ECHO = EchoExecutor(vocabulary=100, mode="echo", step_s=0, context_tokens=1024)


@pytest.mark.parametrize("damage", ["bytes", "type"])
async def test_a_damaged_card_leaves_the_other_models(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire, damage: str
) -> None:
    await ScriptedEngine(engine, "engine-a").appear()
    await ScriptedEngine(engine, "engine-b", model=OTHER).appear()
    if damage == "bytes":
        await link.command("SET", keys.card(OTHER), JUNK)
        await link.command("ZADD", keys.MODELS, "+inf", JUNK)
    else:
        await link.command("DEL", keys.card(OTHER))
        await link.command("RPUSH", keys.card(OTHER), "x")
    with capture_logs() as said:
        for _ in range(2):
            assert [card.model for card in await gateway.cards()] == [MODEL]
    told = sum(each["event"] == "wire.damaged_record" for each in said)
    skipped = gateway.damaged.counts["card"]
    # of another type it is as if there were none
    assert (told, skipped) == ((2, 4) if damage == "bytes" else (0, 0))
    model = LoadedModel(OTHER, ECHO, None)
    await publish_card(engine, model, fit(EngineSettings(), ECHO), created_s=5)  # another start
    assert [card.model for card in await gateway.cards()] == [OTHER, MODEL]


@pytest.mark.parametrize("damage", ["bytes", "type"])
async def test_an_engine_puts_its_card_again_where_it_was_damaged(
    link: Server, engine: RedisEngineWire, damage: str
) -> None:
    if damage == "bytes":
        await link.command("SET", keys.card(OTHER), JUNK)
    else:
        await link.command("RPUSH", keys.card(OTHER), "x")
    put = asyncio.Event()

    async def put_card() -> None:
        put.set()

    keeper = LeaseKeeper(
        wire=engine,
        model=OTHER,
        engine="engine-a",
        desk=cast("Desk", SimpleNamespace(holdings=SimpleNamespace(attempts=dict))),
        link=Link(SystemClock()),
        progress=Progress(clock=SystemClock(), stall_s=60, passes=lambda: 0, resident=lambda: 0),
        load=lambda: Load(running=0, waiting=0, free_blocks=1, total_blocks=1, waits={}),
        put_card=put_card,
        lease_ms=600,
    )
    async with beside(keeper.run()):
        async with asyncio.timeout(20):
            await put.wait()


async def test_a_file_of_another_type_is_told_to_its_engine_and_written_again(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    digest = await engine.put_blob(b"words")
    card = ModelCard(version=1, model=OTHER, files={"a": f"sha256:{digest}"})
    await engine.put_card(card)
    assert await engine.card(OTHER) == card
    await link.pipeline([("DEL", keys.blob(digest)), ("RPUSH", keys.blob(digest), JUNK)])
    with pytest.raises(CommandFailed):
        await gateway.blob(digest)
    assert await engine.card(OTHER) is None
    with capture_logs() as said:
        assert await engine.put_blob(b"words") == digest
        await engine.put_card(card)
    assert [(each["event"], each["key"]) for each in said] == [("wire.replaced", keys.blob(digest))]
    assert await gateway.blob(digest) == b"words"
    assert await engine.card(OTHER) == card
    assert await link.command("PTTL", keys.blob(digest)) == -1


@pytest.mark.parametrize("damage", ["field", "value", "type", "name"])
async def test_a_damaged_key_leaves_the_other_keys(
    link: Server, gateway: RedisGatewayWire, damage: str
) -> None:
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    _, good = await store.create(name="good")
    _, bad = await store.create(name="bad")
    name = keys.api_key(bad.public_id)
    match damage:
        case "field":
            await link.command("HDEL", name, "tenant")
        case "value":
            await link.command("HSET", name, "created_ms", JUNK)
        case "type":
            await link.command("DEL", name)
            await link.command("RPUSH", name, "x")
        case _:
            await link.command("SREM", keys.API_KEYS, bad.public_id)
            await link.command("SADD", keys.API_KEYS, JUNK)
    with capture_logs() as said:
        for _ in range(2):
            assert await store.list() == [good]
        assert await store.forget_old() == 0
        assert b"good" in await store.export()
    assert [each["event"] for each in said] == ["wire.damaged_record"]
    assert gateway.damaged.counts["key"] == 4
    assert await store.revoke(good.public_id)


@pytest.mark.parametrize("damage", ["field", "end", "type"])
async def test_an_import_opens_no_damaged_key_that_was_revoked(
    link: Server, gateway: RedisGatewayWire, damage: str
) -> None:
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    _, kept = await store.create(name="kept")
    _, over = await store.create(name="over")
    exported = await store.export()
    await store.revoke(over.public_id)
    await link.command("HSET", keys.api_key(kept.public_id), "band", JUNK)
    name = keys.api_key(over.public_id)
    match damage:
        case "field":
            await link.command("HSET", name, "band", JUNK)
        case "end":
            await link.command("HSET", name, "revoked_ms", JUNK)
        case _:
            await link.command("DEL", name)
            await link.command("RPUSH", name, "x")
    assert await store.load(exported) == 2
    ends = {key.public_id: key.revoked_ms for key in await store.list()}
    assert ends[kept.public_id] is None
    assert ends[over.public_id] is not None


async def test_an_export_that_lacks_keys_leaves_the_file_of_the_one_before(
    server: RedisServer, link: Server, gateway: RedisGatewayWire, tmp_path: Path
) -> None:
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    _, good = await store.create(name="good")
    _, bad = await store.create(name="bad")
    place, path = KeyPlace(server.url, Access(), None), tmp_path / "keys.jsonl"
    await export(place, path)
    before = path.read_bytes()
    await link.command("HSET", keys.api_key(bad.public_id), "created_ms", JUNK)
    with pytest.raises(CliFailed, match="are left out: 1"):
        await export(place, path)
    assert path.read_bytes() == before
    rest = (tmp_path / "keys.jsonl.partial").read_text()
    assert good.public_id in rest
    assert bad.public_id not in rest


async def test_an_export_with_a_damaged_key_says_so_and_can_be_read_back(
    server: RedisServer, link: Server, gateway: RedisGatewayWire
) -> None:
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    _, good = await store.create(name="good")
    _, bad = await store.create(name="bad")
    await link.command("HSET", keys.api_key(bad.public_id), "created_ms", JUNK)
    command = headrace("keys", "export", "-", "--redis-url", server.url)
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, env=clean_environ(), check=False
    )
    assert done.returncode == 1
    assert b"are left out: 1." in done.stderr
    assert bad.public_id.encode() in done.stderr
    assert await store.load(done.stdout) == 1
    assert await store.list() == [good]
    assert await store.forget(bad.public_id)


async def test_a_damaged_engine_leaves_the_others_and_a_damaged_request_the_list(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    good = ScriptedEngine(engine, "engine-a")
    await good.appear()
    await ScriptedEngine(engine, "engine-b").appear()
    await ScriptedEngine(engine, "engine-c", model=OTHER).appear()
    await link.command("HSET", keys.engine("engine-b"), "running", JUNK)
    # a queue of another type: whoever looks empties it
    await link.command("SET", keys.queued(OTHER), JUNK)
    front = Gateway(gateway)
    with capture_logs() as said:
        async with front.running() as service:
            fine, lost, silent = [await service.start(call(x, request_id=x)) for x in "abc"]
            claimed = {each.record.id: each for each in await good.claim(3)}
            await link.command("HSET", keys.state(lost.id), "attempt", JUNK)
            await link.command("RPUSH", keys.log(silent.id), JUNK)

            def gauge(name: str, model: str) -> float | None:
                for family in front.metrics.registry.families():
                    for sample in family.samples:
                        if sample.name == name and sample.labels.get("model") == model:
                            return sample.value
                return None

            async def shown() -> bool:
                ready = gauge("headrace_gateway_engines_ready", MODEL)
                return (ready, gauge("headrace_gateway_queue_depth", MODEL)) == (1, 0)

            await eventually(shown)

            async def mended() -> bool:
                return gauge("headrace_gateway_queue_depth", OTHER) == 0

            await eventually(mended)
            listed, more = await service.requests(CALLER, limit=10)
            assert {each.info.id for each in listed} == {fine.id, silent.id}
            assert not more

            for running in (lost, silent):  # they are asked about, once they have been silent
                with pytest.raises(Exception, match="cannot be read"):
                    async with asyncio.timeout(30):
                        await read_events(running)
            await good.say(claimed[fine.id], "fine", finish=FinishReason.STOP)
            assert texts(await read_events(fine)) == {0: "fine"}
    told = {each["event"] for each in said if each["log_level"] == "error"}
    assert {"wire.damaged_record", "wire.replaced", "request.unreadable"} <= told
    assert sum(each["event"] == "wire.replaced" for each in said) == 1
    assert "task.failed" not in told
