"""Where a live request stands: in its queue, at an engine that says why, or between two."""

from __future__ import annotations

from dataclasses import replace

from headrace_transport.interface import MAX_AHEAD, EngineInfo, Standing, Wait
from support.wires import MODEL, SOON_MS, Wires, claim, entry, finish, mark, record

INFO = EngineInfo("e-1.boot", MODEL, "ready", 1, 1, 30, 64)


async def test_a_queued_request_knows_what_is_before_it_in_its_own_queue(wires: Wires) -> None:
    gateway = await wires.gateway()
    for name in ("a", "b", "c"):
        await gateway.submit(record(name), max_queued=9)
    await gateway.submit(record("other", tenant="umbrella"), max_queued=9)
    nobody = Standing(owner=None, wait=None, resumes=False, ahead=2, depth=4)
    assert await gateway.standing(MODEL, "c") == nobody
    assert await gateway.standing(MODEL, "other") == replace(nobody, ahead=0)
    assert await gateway.cancel(MODEL, "b", mark())
    assert await gateway.standing(MODEL, "c") == replace(nobody, ahead=1, depth=3)


async def test_what_is_taken_is_no_longer_before_anybody(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for name in ("a", "b"):
        await gateway.submit(record(name), max_queued=9)
    assert list(await claim(engine, "e-1.boot", credit=1)) == ["a"]
    assert (await gateway.standing(MODEL, "b")).ahead == 0
    at_engine = await gateway.standing(MODEL, "a")
    assert at_engine == Standing(owner="e-1.boot", wait=None, resumes=False, ahead=None, depth=1)


async def test_an_engine_says_why_until_it_says_otherwise_or_nothing(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("a"), max_queued=9)
    await claim(engine, "e-1.boot")
    told = replace(INFO, waits={"a": Wait("blocks", 3), "x": Wait("priority")})
    await engine.beat_engine(told, ttl_ms=SOON_MS)
    assert (await gateway.standing(MODEL, "a")).wait == Wait("blocks", 3)
    assert await gateway.engines(MODEL) == [told]
    await engine.beat_engine(INFO, ttl_ms=SOON_MS)
    assert (await gateway.standing(MODEL, "a")).wait is None
    await engine.beat_engine(told, ttl_ms=SOON_MS)
    await wires.pass_ms(SOON_MS + 50)
    assert (await gateway.standing(MODEL, "a")).wait is None


async def test_a_request_that_lost_its_engine_waits_for_a_successor(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("a"), max_queued=9)
    await claim(engine, "e-1.boot")
    await engine.release(MODEL, "e-1.boot", {"a": 1})
    assert await gateway.standing(MODEL, "a") == Standing(
        owner=None, wait=None, resumes=True, ahead=None, depth=1
    )


async def test_counting_stops_somewhere(wires: Wires) -> None:
    gateway = await wires.gateway()
    for number in range(MAX_AHEAD + 3):
        await gateway.submit(record(f"r{number}"), max_queued=1000)
    assert (await gateway.standing(MODEL, f"r{MAX_AHEAD + 2}")).ahead == MAX_AHEAD


async def test_what_nobody_knows_stands_nowhere(wires: Wires) -> None:
    gateway = await wires.gateway()
    assert await gateway.standing(MODEL, "none") == Standing(None, None, False, None, 0)


async def test_a_keys_live_requests_are_listed_until_they_end(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for name in ("a", "b"):
        await gateway.submit(record(name), max_queued=9)
    await gateway.submit(record("c", key_id="another"), max_queued=9)
    tenant, key = record("a").tenant, record("a").key_id
    assert sorted(await gateway.live_requests(tenant, key, limit=9)) == ["a", "b"]
    assert len(await gateway.live_requests(tenant, key, limit=1)) == 1
    assert await gateway.live_requests("umbrella", key, limit=9) == []
    assert list(await claim(engine, "e-1.boot", credit=1)) == ["a"]
    assert await finish(engine, "a", name="e-1.boot")
    assert await gateway.live_requests(tenant, key, limit=9) == ["b"]


async def test_a_state_counts_the_tokens_that_the_log_holds(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("a"), max_queued=9)
    await claim(engine, "e-1.boot")
    await engine.append_log("e-1.boot", "a", 1, entry([7, 8, 9]))
    state = await gateway.request_state("a")
    assert state is not None
    assert state.tokens == 3
