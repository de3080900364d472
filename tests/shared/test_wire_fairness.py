"""Tenants share a band by virtual token counters."""

from __future__ import annotations

from collections import Counter

from headrace_transport.interface import EngineWire
from support.wires import MODEL, Wires, claim, finish, record


async def served(engine: EngineWire, rounds: int, *, generated: int = 0) -> Counter[str]:
    """Who is served when one request at a time is claimed and finished."""
    tenants: Counter[str] = Counter()
    for _ in range(rounds):
        ((name, claimed),) = (await claim(engine, credit=1)).items()
        tenants[claimed.record.tenant] += 1
        assert await finish(engine, name, generated=generated)
    return tenants


async def test_flood_of_one_tenant_does_not_delay_another(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(20):
        await gateway.submit(record(f"flood{i}", tenant="flood"), max_queued=99)
    await claim(engine, credit=5)
    await gateway.submit(record("one", tenant="small"), max_queued=99)
    # the newcomer starts at the current minimum: level with the flood, not behind it
    assert "one" in await claim(engine, credit=2)


async def test_prompt_tokens_count(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(12):
        await gateway.submit(record(f"l{i}", tenant="long", prompt=[1] * 30), max_queued=99)
        await gateway.submit(record(f"s{i}", tenant="short", prompt=[1] * 10), max_queued=99)
    assert await served(engine, 12) == {"long": 3, "short": 9}


async def test_generated_tokens_count_twice(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(12):
        await gateway.submit(record(f"a{i}", tenant="a", prompt=[1] * 10), max_queued=99)
        await gateway.submit(record(f"b{i}", tenant="b", prompt=[1] * 10), max_queued=99)
    tenants: Counter[str] = Counter()
    for _ in range(12):
        ((name, claimed),) = (await claim(engine, credit=1)).items()
        tenants[claimed.record.tenant] += 1
        # b generates 10 each time: 10 + 20 against 10
        generated = 10 if claimed.record.tenant == "b" else 0
        assert await finish(engine, name, generated=generated)
    assert tenants == {"a": 9, "b": 3}


async def test_idle_time_is_no_credit(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("z0", tenant="idle"), max_queued=99)
    await served(engine, 1)
    for i in range(30):
        await gateway.submit(record(f"b{i}", tenant="busy", prompt=[1] * 50), max_queued=99)
    await served(engine, 20)
    for i in range(10):
        await gateway.submit(record(f"i{i}", tenant="idle", prompt=[1] * 50), max_queued=99)
    shares = await served(engine, 10)
    assert abs(shares["idle"] - shares["busy"]) <= 1


async def test_tenant_that_leaves_and_returns_keeps_its_counter(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("w0", tenant="waits", prompt=[1]), max_queued=99)
    await gateway.submit(record("h0", tenant="heavy", prompt=[1] * 1000), max_queued=99)
    await served(engine, 2)
    for i in range(3):
        await gateway.submit(record(f"w{i + 1}", tenant="waits", prompt=[1]), max_queued=99)
        await gateway.submit(record(f"h{i + 1}", tenant="heavy", prompt=[1]), max_queued=99)
    # heavy had its thousand tokens, and leaving the queue did not forgive them
    assert await served(engine, 3) == {"waits": 3}


async def test_take_over_is_not_charged_again(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("x", tenant="a", prompt=[1] * 100), max_queued=99)
    await gateway.submit(record("y", tenant="b", prompt=[1] * 150), max_queued=99)
    first = await claim(engine, credit=2)
    for _ in range(3):
        await engine.release("org/model-1", "e-1", {"x": first["x"].attempt})
        first |= await claim(engine, credit=1)
    await gateway.submit(record("x2", tenant="a"), max_queued=99)
    await gateway.submit(record("y2", tenant="b"), max_queued=99)
    assert list(await claim(engine, credit=1)) == ["x2"]


async def test_newcomer_starts_at_the_current_minimum(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(2):
        await gateway.submit(record(f"b{i}", tenant="big", prompt=[1] * 100), max_queued=99)
    await claim(engine, credit=1)
    for i in range(5):
        await gateway.submit(record(f"n{i}", tenant="new", prompt=[1] * 10), max_queued=99)
    # from nothing it would be served five times first
    assert "b1" in await claim(engine, credit=2)


async def test_weights_are_shares_and_are_replaced_whole(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await engine.put_weights(MODEL, {"big": 3.0, "gone": 9.0})
    for i in range(24):
        await gateway.submit(record(f"b{i}", tenant="big", prompt=[1] * 10), max_queued=99)
        await gateway.submit(record(f"s{i}", tenant="small", prompt=[1] * 10), max_queued=99)
    assert await served(engine, 12) == {"big": 9, "small": 3}
    await engine.put_weights(MODEL, {})
    assert await served(engine, 12) == {"big": 6, "small": 6}
