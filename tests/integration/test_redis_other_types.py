"""Keys of ours that somebody made another type of: emptied and told, and everything goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import pytest
from headrace_contracts import keys
from headrace_contracts.key_types import type_of
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import ModelCard
from headrace_gateway.auth.keys import KeyStore
from headrace_kit.clock import SystemClock
from headrace_transport import api_keys
from headrace_transport import server as server_module
from headrace_transport.connection import RedisEngineWire, RedisGatewayWire
from headrace_transport.errors import TransportUnavailable, WrongType
from headrace_transport.interface import FIRST_FRAME, EngineInfo, Rates
from headrace_transport.scripting import shared_keys
from headrace_transport.server import Server
from structlog.testing import capture_logs
from support.processes import PEPPER
from support.waiting import PATIENCE_S
from support.wires import GATEWAY, LEASE_MS, MODEL, claim, entry, finish, frame, mark, record

T = TypeVar("T")
ENGINE = "e-1"
TENANT, KEY = "acme", "key1"
CARD = ModelCard(version=WIRE_VERSION, model=MODEL)
JUNK = b"\xff\x00junk"
KEYS = [
    *shared_keys(MODEL),
    keys.MODELS,
    keys.SWEEPER,
    keys.FORGOTTEN_KEYS,
    keys.engine(ENGINE),
    keys.control(ENGINE),
    keys.holding(MODEL, ENGINE),
    keys.gateway(GATEWAY),
    keys.out(GATEWAY),
    keys.requests_of(MODEL, GATEWAY),
    keys.queue(MODEL, 1, TENANT),
    keys.running(TENANT, KEY),
    keys.rate(TENANT, KEY),
    keys.idempotency(TENANT, KEY, "d1"),
]
UNSEEN = {
    keys.dead_letters(MODEL),  # nothing is buried here
    keys.floors(MODEL),  # seen when a tenant comes that has no work
    keys.weights(MODEL),  # written anew at each start
    keys.quarantine(MODEL),
    *(keys.tenants(MODEL, band) for band in (0, 2, 3)),
    *(keys.idle_tenants(MODEL, band) for band in range(4)),
}
"""What this life may not come across."""


async def again(job: Callable[[], Awaitable[T]]) -> T:
    """A job as its owner does it: once more where the server is said to be away."""
    for _ in range(4):
        try:
            return await job()
        except TransportUnavailable:
            continue
    raise AssertionError("it never came back")


@dataclass(frozen=True, slots=True)
class Life:
    """What gateways and engines do all the time."""

    gateway: RedisGatewayWire
    engine: RedisEngineWire

    async def beat(self) -> None:
        gateway, engine = self.gateway, self.engine
        info = EngineInfo(ENGINE, MODEL, "ready", 0, 0, 1, 1)
        await again(lambda: gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS))
        await again(lambda: gateway.take_sweep(GATEWAY, ttl_ms=1))
        await again(lambda: engine.beat_engine(info, ttl_ms=LEASE_MS))
        if await again(lambda: engine.card(MODEL)) is None:
            await again(lambda: engine.put_card(CARD))
        await again(lambda: engine.reap(MODEL))
        assert list(await again(gateway.cards)) == [CARD]
        assert list(await again(lambda: gateway.engines(MODEL))) == [info]

    async def submit(self, name: str, slot: int) -> None:
        made = record(name, slot=slot, tenant=TENANT, key_id=KEY)
        await again(lambda: self.gateway.submit(made, max_queued=9, max_concurrency=9))

    async def claim(self) -> set[str]:
        return set(await again(lambda: claim(self.engine, ENGINE)))

    async def ask(self) -> None:
        gateway, engine = self.gateway, self.engine
        rates = Rates(requests=60, tokens=None)
        await again(lambda: gateway.take_rate(TENANT, KEY, rates, requests=1, tokens=0, must=True))
        await again(lambda: gateway.bind_once(TENANT, KEY, "d1", "cmpl-1 b", ttl_ms=9_000))
        await again(lambda: gateway.live_requests(TENANT, KEY, limit=9))
        await again(lambda: gateway.queue_depth(MODEL))
        await again(lambda: gateway.standing(MODEL, "r0"))
        await again(lambda: gateway.api_key_is_forgotten("nobody"))
        await again(lambda: gateway.trim_out(GATEWAY, FIRST_FRAME))
        await again(lambda: gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1))
        await again(lambda: engine.wait_bell(MODEL, timeout_ms=1))
        await again(lambda: engine.read_control(ENGINE, "0-0", block_ms=1))
        await again(lambda: engine.frames_of(GATEWAY, FIRST_FRAME, None))

    async def run(self, name: str, slot: int) -> None:
        gateway, engine = self.gateway, self.engine
        await again(lambda: engine.publish({GATEWAY: frame([7], slot=slot)}))
        await again(lambda: engine.append_log(ENGINE, name, 1, entry([7])))
        await again(lambda: gateway.attach(name, GATEWAY, slot, 0))
        await again(lambda: engine.renew(MODEL, ENGINE, {name: 1}, lease_ms=LEASE_MS))
        await again(lambda: gateway.cancel(MODEL, name, mark()))
        await again(lambda: engine.cancels(MODEL, [name]))
        await again(lambda: engine.supersede(MODEL, "other-00000001"))


@pytest.mark.parametrize("name", KEYS)
async def test_a_key_of_another_type_is_emptied_and_told_and_all_goes_on(
    name: str, link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    life = Life(gateway, engine)
    await life.beat()
    await life.submit("r0", 10)
    await life.submit("r1", 11)
    assert await life.claim() == {"r0", "r1"}
    await life.submit("r2", 12)
    await life.ask()

    ours = type_of(name)
    assert ours is not None
    other = ("HSET", name, "x", JUNK) if ours != "hash" else ("SET", name, JUNK)
    await link.pipeline([("DEL", name), other])
    with capture_logs() as said:
        await life.run("r0", 10)  # before anything else has looked
        await again(lambda: finish(engine, "r0", name=ENGINE))
        await life.ask()
        await life.beat()
        await life.submit("r3", 13)
        await again(lambda: engine.release(MODEL, ENGINE, {"r1": 1}))
        await again(lambda: gateway.cancel(MODEL, "r2", mark()))
        assert "r3" in await life.claim()
        assert await again(lambda: finish(engine, "r3", name=ENGINE))
        await life.beat()
    told = {each["key"] for each in said if each["event"] == "wire.replaced"}
    assert told == {name} or (name in UNSEEN and not told)
    assert gateway.damaged.counts["replaced"] + engine.damaged.counts["replaced"] == len(told)
    kind = await link.command("TYPE", name)
    assert name in UNSEEN or kind in (b"none", ours.encode())


async def test_of_many_who_meet_such_a_key_one_empties_it_and_all_come_back(
    link: Server, gateway: RedisGatewayWire
) -> None:
    await link.command("SET", keys.queued(MODEL), JUNK)
    with capture_logs() as said:
        depths = await asyncio.gather(
            *(again(lambda: gateway.queue_depth(MODEL)) for _ in range(8)),
        )
    assert depths == [0] * 8
    assert sum(each["event"] == "wire.replaced" for each in said) == 1


async def test_a_key_of_another_type_that_nobody_can_name_is_no_outage_for_ever(
    link: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_FRUITLESS_S", 0.1)
    await link.command("SET", keys.queued(MODEL), JUNK)
    junk = f"return redis.call('ZCARD', '{keys.queued(MODEL)}')"

    async def ask_for_ever() -> None:
        while True:
            with suppress(TransportUnavailable):
                await link.command("EVAL", junk, 1, keys.MODELS)
            await asyncio.sleep(0.01)

    with pytest.raises(WrongType):
        await asyncio.wait_for(ask_for_ever(), PATIENCE_S)


@pytest.mark.parametrize("end", [JUNK, b"nan"])
async def test_a_key_whose_end_is_damaged_can_be_revoked_and_forgotten(
    end: bytes, link: Server, gateway: RedisGatewayWire
) -> None:
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    _, key = await store.create(name="damaged")
    await link.command("HSET", keys.api_key(key.public_id), "revoked_ms", end)
    assert not await gateway.forget_api_key(key.public_id, over_ms=5)
    assert await store.revoke(key.public_id, at_ms=7)
    assert [each.revoked_ms for each in await store.list()] == [7]
    assert await gateway.forget_api_key(key.public_id, over_ms=8)


@pytest.mark.parametrize("job", ["list", "create", "load", "forget"])
async def test_a_list_of_keys_of_another_type_is_made_anew(
    job: str, link: Server, gateway: RedisGatewayWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "_AT_ONCE", 2)  # so that it takes several looks
    store = KeyStore(gateway, PEPPER.encode(), SystemClock())
    there = {(await store.create(name=f"key {i}"))[1].public_id for i in range(5)}
    kept, gone = await store.export(), min(there)
    await link.command("SET", keys.api_key("no name"), JUNK)
    await link.pipeline([("DEL", keys.API_KEYS), ("HSET", keys.API_KEYS, "x", JUNK)])
    with capture_logs() as said:
        match job:
            case "create":
                there.add((await store.create(name="new"))[1].public_id)
            case "load":
                assert await store.load(kept) == 5
            case "forget":
                assert await store.forget(gone)
                assert await store.load(kept) == 4
                there.remove(gone)
            case _:
                pass
        assert {key.public_id for key in await store.list()} == there
    events = [(each["event"], each.get("key", each.get("kind"))) for each in said]
    assert events == [("wire.damaged_record", "key"), ("wire.replaced", keys.API_KEYS)]


@pytest.mark.parametrize("junk", [JUNK, b"nan", b"inf", b"-1e300"])
async def test_numbers_that_many_share_stop_nobody_where_they_are_damaged(
    junk: bytes, link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    life = Life(gateway, engine)
    await life.beat()
    for field in ("at", "requests", "tokens"):
        await link.command("HSET", keys.rate(TENANT, KEY), field, junk)
    await link.command("HSET", keys.floors(MODEL), "1", junk)
    await link.command("HSET", keys.weights(MODEL), TENANT, junk)
    await link.command("HSET", keys.leases(MODEL), "r0", b"e-1 1 gw-1.a 10 99999999999")
    await life.ask()
    await life.submit("r0", 10)
    assert await life.claim() == {"r0"}
    assert await finish(engine, "r0", name=ENGINE, generated=5)
    assert await life.claim() == set()
    await life.beat()
