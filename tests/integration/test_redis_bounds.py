"""How much one script looks at, and that what nobody can run or end any more does not stay."""

from __future__ import annotations

import pytest
from headrace_contracts import keys
from headrace_transport import leases, processes
from headrace_transport.connection import RedisEngineWire, RedisGatewayWire
from headrace_transport.interface import Rates
from headrace_transport.replies import as_int
from headrace_transport.server import Server
from support.waiting import eventually
from support.wires import GATEWAY, LEASE_MS, MODEL, SHORT_MS, claim, entry, finish, mark, record

TENANTS = keys.tenants(MODEL, 1)


async def count(link: Server, *command: str | int) -> int:
    return as_int(await link.command(*command))


# tenants of whom nothing waits
async def test_claim_passes_few_idle_tenants_and_reaches_what_is_behind_them(
    link: Server,
    gateway: RedisGatewayWire,
    engine: RedisEngineWire,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_LOOKS", 2)
    for i in range(9):
        await gateway.submit(record(f"r{i}", tenant=f"t{i}"), max_queued=99)
    assert len(await claim(engine, credit=9)) == 9
    await gateway.submit(record("last", tenant="zz", prompt=[1] * 9), max_queued=99)
    assert await count(link, "ZCARD", TENANTS) == 10, "they stay until a claim finds nothing there"

    assert await claim(engine, credit=1) == {}
    assert await count(link, "ZCARD", TENANTS) == 7, "as many as a claim of one may look at"
    assert await engine.wait_bell(MODEL, timeout_ms=1), "it rang for the next one"
    claims = 1
    while "last" not in await claim(engine, credit=1):
        claims += 1
        assert claims < 5


async def test_without_an_engine_the_reaper_lets_idle_tenants_go(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for name, tenant in (("r1", "gone"), ("r2", "gone"), ("r3", "waits")):
        await gateway.submit(record(name, tenant=tenant), max_queued=9)
    for name in ("r1", "r2"):
        await gateway.cancel(MODEL, name, mark())

    await gateway.reap(MODEL)

    assert await link.command("ZRANGE", TENANTS, 0, -1) == [b"waits"]
    assert not await count(link, "EXISTS", keys.queue(MODEL, 1, "gone"))
    await gateway.submit(record("r4", tenant="gone"), max_queued=9)
    assert set(await claim(engine)) == {"r3", "r4"}


async def test_the_reaper_spares_a_tenant_whose_group_was_lost(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await link.command("XGROUP", "DESTROY", keys.queue(MODEL, 1, "acme"), "engines")
    await gateway.reap(MODEL)
    assert set(await claim(engine)) == {"r1"}


async def test_one_reaping_takes_away_so_many_places_and_the_next_the_rest(
    link: Server, gateway: RedisGatewayWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_REAP", 3)
    for tenant in ("t1", "t2"):
        for i in range(3):
            await gateway.submit(record(f"{tenant}-{i}", tenant=tenant), max_queued=9)
            await gateway.cancel(MODEL, f"{tenant}-{i}", mark())

    async def places() -> int:
        return sum(
            [await count(link, "XLEN", keys.queue(MODEL, 1, tenant)) for tenant in ("t1", "t2")]
        )

    left = [await places()]
    for _ in range(2):
        await gateway.reap(MODEL)
        left.append(await places())
    assert left == [6, 3, 0]


async def test_no_place_is_passed_over_for_ever_by_a_reaper_that_looks_at_some(
    link: Server, gateway: RedisGatewayWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_REAP", 2)
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    for tenant in ("t1", "t2", "t3"):
        await gateway.submit(record(f"{tenant}-waits", tenant=tenant), max_queued=9)
    await gateway.submit(record("over", tenant="t4"), max_queued=9)
    await gateway.cancel(MODEL, "over", mark())

    async def left() -> bool:
        await gateway.reap(MODEL)
        return not await count(link, "EXISTS", keys.queue(MODEL, 1, "t4"))

    await eventually(left)


@pytest.mark.parametrize("lives", [1, 2])
async def test_no_mark_is_passed_over_for_ever_by_a_reaper_that_looks_at_some(
    gateway: RedisGatewayWire,
    engine: RedisEngineWire,
    monkeypatch: pytest.MonkeyPatch,
    lives: int,
) -> None:
    """``lives``: engines that they lost; from the second on they wait apart, as suspects."""
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    names = [f"r{i}" for i in range(4)]
    for i, name in enumerate(names):
        await gateway.submit(record(name, slot=10 + i), max_queued=9)
    for life in range(lives):
        assert len(await claim(engine, f"e-{life}", lease_ms=SHORT_MS)) == len(names)
        if life == lives - 1:
            assert await gateway.cancel(MODEL, "r3", mark())
            monkeypatch.setattr(processes, "_REAP", 1)
        await eventually(lambda: _waits_again(gateway, engine, len(names) - 1))

    async def ended() -> bool:
        await gateway.reap(MODEL)
        state = await gateway.request_state("r3")
        return state is not None and state.status == "finished"

    await eventually(ended)


# requests whose state is gone
async def test_a_claim_passes_few_requests_without_a_state_and_rings_for_the_rest(
    link: Server,
    gateway: RedisGatewayWire,
    engine: RedisEngineWire,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "_LOOKS", 2)
    for i in range(9):
        await gateway.submit(record(f"r{i}", slot=10 + i), max_queued=99)
    taken = await claim(engine, credit=9)
    await engine.release(MODEL, "e-1", {name: each.attempt for name, each in taken.items()})
    await link.command("DEL", *(keys.state(name) for name in taken if name != "r8"))

    assert await claim(engine, credit=1) == {}
    assert await count(link, "ZCARD", keys.orphans(MODEL)) == 6
    assert await engine.wait_bell(MODEL, timeout_ms=1)
    assert await claim(engine, credit=1) == {}
    assert set(await claim(engine, credit=1)) == {"r8"}
    assert await gateway.queue_depth(MODEL) == 0


async def test_the_reaper_forgets_what_has_no_state(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    """Of a gateway that is gone; one that waits in line, and one that lost its engine."""
    for name in ("r1", "r2"):
        await gateway.submit(record(name), max_queued=9)
    await claim(engine, credit=1)
    await engine.release(MODEL, "e-1", {"r1": 1})
    await link.command("DEL", keys.state("r1"), keys.state("r2"))
    await gateway.leave_gateway(GATEWAY)

    await gateway.reap(MODEL)

    assert await gateway.queue_depth(MODEL) == 0
    assert not await count(link, "EXISTS", keys.orphans(MODEL), keys.requests_of(MODEL, GATEWAY))


@pytest.mark.parametrize("lives", [1, 2])
async def test_a_waiting_request_without_a_state_is_nowhere_any_more(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire, lives: int
) -> None:
    """``lives``: engines that it lost; from the second on it waits apart, as a suspect."""
    await gateway.submit(record("r1", prompt=[99_999] * 32_768), max_queued=9)
    for life in range(lives):
        await eventually(lambda life=life: claim(engine, f"e-{life}", lease_ms=1))
    await engine.append_log(f"e-{lives - 1}", "r1", lives, entry([7], attempt=lives))
    await eventually(lambda: _queued_again(gateway, engine))
    await link.command("HSET", keys.cancels(MODEL), "r1/0", b"")
    await link.command("DEL", keys.state("r1"))

    assert await claim(engine, "e-9") == {}

    assert await gateway.queue_depth(MODEL) == 0
    assert not await count(link, "EXISTS", keys.body("r1"), keys.cancels(MODEL), keys.queued(MODEL))
    assert await count(link, "PTTL", keys.log("r1")) > 0


async def _queued_again(gateway: RedisGatewayWire, engine: RedisEngineWire) -> bool:
    await engine.reap(MODEL)
    return await gateway.queue_depth(MODEL) == 1


async def _waits_again(gateway: RedisGatewayWire, engine: RedisEngineWire, most: int) -> bool:
    """Whether so many wait again at least: one that was cancelled may have ended by that."""
    await engine.reap(MODEL)
    return await gateway.queue_depth(MODEL) >= most


async def test_a_running_request_without_a_state_is_nowhere_any_more(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1", prompt=[99_999] * 32_768), max_queued=9)
    await claim(engine, lease_ms=1)
    await link.command("DEL", keys.state("r1"))

    async def swept() -> bool:
        await engine.reap(MODEL)
        return not await count(link, "EXISTS", keys.leases(MODEL))

    await eventually(swept)
    assert not await count(link, "EXISTS", keys.body("r1"))


async def test_a_queue_of_expired_strangers_hides_no_request_from_the_reaper(
    link: Server,
    gateway: RedisGatewayWire,
    engine: RedisEngineWire,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "_REAP", 2)
    await gateway.beat_gateway(GATEWAY, ttl_ms=60_000)
    await gateway.submit(record("over", deadline_ms=3), max_queued=9)
    await gateway.submit(record("runs", slot=20), max_queued=9)
    assert set(await claim(engine, credit=9)) == {"runs"}
    await gateway.submit(record("late", slot=30, deadline_ms=4), max_queued=9)
    for stranger in ("a", "b", "runs"):
        await link.command("ZADD", keys.queued(MODEL), 1, stranger)

    for _ in range(3):
        await gateway.reap(MODEL)

    state = await gateway.request_state("late")
    assert state is not None
    assert state.status == "finished"
    assert not await count(link, "EXISTS", keys.queued(MODEL))
    assert await finish(engine, "runs")


# what ends by itself, or is taken away
async def test_who_empties_itself_for_a_suspect_is_remembered_for_a_lease_and_no_longer(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("own"), max_queued=9)
    assert set(await claim(engine)) == {"own"}
    await gateway.submit(record("suspect", slot=20), max_queued=9)
    for life in range(2):
        await eventually(lambda life=life: claim(engine, f"e-dies-{life}", lease_ms=1))
    await eventually(lambda: _is_suspected(link, gateway))

    assert await claim(engine) == {}
    assert 0 < await count(link, "PTTL", keys.quarantine(MODEL)) <= LEASE_MS
    assert await finish(engine, "own")
    assert set(await claim(engine)) == {"suspect"}
    assert not await count(link, "EXISTS", keys.quarantine(MODEL))


async def _is_suspected(link: Server, gateway: RedisGatewayWire) -> bool:
    await gateway.reap(MODEL)
    return bool(await count(link, "ZCARD", keys.suspects(MODEL)))


async def test_control_that_was_read_is_taken_away(
    link: Server, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for i in range(3):
        await gateway.submit(record(f"r{i}", slot=10 + i), max_queued=9)
    await claim(engine)
    for i in range(2):
        await gateway.cancel(MODEL, f"r{i}", mark())
    read = await engine.read_control("e-1", "0-0", block_ms=1000)
    assert len(read) == 2
    await gateway.cancel(MODEL, "r2", mark())
    await engine.read_control("e-1", read[-1][0], block_ms=1000)
    assert await count(link, "XLEN", keys.control("e-1")) == 2, "what was named, and what is new"


async def test_a_server_whose_clock_is_behind_takes_nothing_from_a_keys_minute(
    link: Server, gateway: RedisGatewayWire
) -> None:
    limits = Rates(requests=100, tokens=None)
    await gateway.take_rate("acme", "k", limits, requests=1, tokens=0, must=True)
    hour_ms = 3_600_000
    later = await count(link, "HGET", keys.rate("acme", "k"), "at") + hour_ms
    await link.command("HSET", keys.rate("acme", "k"), "at", later)
    left = await gateway.take_rate("acme", "k", limits, requests=1, tokens=0, must=True)
    assert (left.granted, left.requests_left) == (True, 98)
