"""The bell: nobody sleeps while there is work that he could have."""

from __future__ import annotations

import asyncio

from support.wires import MODEL, SHORT_MS, Wires, claim, mark, record

LONG_MS = 20_000
"""A wait that only a ring ends within a test."""


async def test_submit_wakes_a_waiting_engine(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(engine.wait_bell(MODEL, timeout_ms=LONG_MS))
        await asyncio.sleep(0.02)
        await gateway.submit(record("r1"), max_queued=9)
    assert waiting.result()
    assert set(await claim(engine)) == {"r1"}


async def test_ring_before_the_wait_is_kept(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert not await engine.wait_bell(MODEL, timeout_ms=20)
    await gateway.submit(record("r1"), max_queued=9)
    assert await engine.wait_bell(MODEL, timeout_ms=LONG_MS)


async def test_claim_that_leaves_work_rings_for_the_next(wires: Wires) -> None:
    gateway, engine, other = await wires.gateway(), await wires.engine(), await wires.engine()
    for i in range(5):
        await gateway.submit(record(f"r{i}"), max_queued=9)
    # all strokes but the claims' own are used up
    while await engine.wait_bell(MODEL, timeout_ms=20):
        pass
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.wait_bell(MODEL, timeout_ms=LONG_MS))
        await asyncio.sleep(0.02)
        assert len(await claim(engine, credit=2)) == 2
    assert waiting.result()
    assert len(await claim(other, "e-2", credit=8)) == 3


async def test_claim_that_leaves_nothing_silences_the_bell(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(30):
        await gateway.submit(record(f"r{i}"), max_queued=99)
    assert len(await claim(engine, credit=31)) == 30
    assert not await engine.wait_bell(MODEL, timeout_ms=20)


async def test_release_wakes_a_waiting_engine(wires: Wires) -> None:
    gateway, engine, other = await wires.gateway(), await wires.engine(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(other.wait_bell(MODEL, timeout_ms=LONG_MS))
        await asyncio.sleep(0.02)
        await engine.release(MODEL, "e-1", {"r1": 1})
    assert waiting.result()


async def test_a_reaping_that_finds_an_expired_lease_wakes_an_engine(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    assert set(await claim(engine, lease_ms=SHORT_MS)) == {"r1"}
    await wires.pass_ms(2 * SHORT_MS)
    assert not await engine.wait_bell(MODEL, timeout_ms=5)
    await gateway.reap(MODEL)
    assert await engine.wait_bell(MODEL, timeout_ms=5)
    await gateway.reap(MODEL)
    assert not await engine.wait_bell(MODEL, timeout_ms=5)


async def test_waiting_engines_share_a_burst_without_sleeping_through_it(wires: Wires) -> None:
    gateway = await wires.gateway()
    engines = [await wires.engine() for _ in range(4)]
    done: list[str] = []

    async def serve(number: int) -> None:
        while len(done) < 40:
            await engines[number].wait_bell(MODEL, timeout_ms=LONG_MS)
            got = await claim(engines[number], f"e-{number}", credit=1)
            done.extend(got)
            if len(done) >= 40:
                # lets the other three out
                for i in range(3):
                    await gateway.submit(record(f"end{i}", band=3), max_queued=99)

    async def feed() -> None:
        for i in range(40):
            await gateway.submit(record(f"r{i}"), max_queued=99)
            if i % 7 == 0:
                await asyncio.sleep(0.01)

    async with asyncio.timeout(LONG_MS / 2000):
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(serve(number))
            group.create_task(feed())
    assert {f"r{i}" for i in range(40)} <= set(done)
    assert len(done) == len(set(done))


async def test_tombstones_do_not_hide_work_behind_them(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(300):
        await gateway.submit(record(f"r{i}"), max_queued=999)
        await gateway.cancel(MODEL, f"r{i}", mark())
    await gateway.submit(record("live"), max_queued=999)
    got: list[str] = []
    for _ in range(9):
        if not await engine.wait_bell(MODEL, timeout_ms=200):
            break
        got += await claim(engine, credit=1)
    assert got == ["live"]
