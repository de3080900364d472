"""What the wire does when the server goes, comes back, forgets or refuses to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

import pytest
from headrace_contracts import keys
from headrace_transport import api_keys
from headrace_transport.connection import (
    RedisEngineWire,
    RedisGatewayWire,
    connect_engine,
    connect_gateway,
)
from headrace_transport.errors import CommandFailed, TransportUnavailable
from headrace_transport.interface import FIRST_FRAME
from headrace_transport.options import WireOptions
from support.redis import RedisServer
from support.waiting import eventually
from support.wires import (
    GATEWAY,
    LEASE_MS,
    MODEL,
    SHORT_MS,
    claim,
    entry,
    finish,
    frame,
    mark,
    record,
)

OPTIONS = WireOptions(op_timeout_s=10, connect_timeout_s=10)
HASTY = WireOptions(op_timeout_s=0.2, connect_timeout_s=10)
"""For servers that do not answer."""


@pytest.fixture
async def gateway(own_server: RedisServer) -> AsyncGenerator[RedisGatewayWire]:
    wire = await connect_gateway(own_server.url, options=OPTIONS)
    yield wire
    await wire.close()


@pytest.fixture
async def engine(own_server: RedisServer) -> AsyncGenerator[RedisEngineWire]:
    wire = await connect_engine(own_server.url, options=OPTIONS)
    yield wire
    await wire.close()


async def available(call: Callable[[], Awaitable[object]]) -> None:
    """Calls until it is not unavailable any more."""

    async def answers() -> bool:
        try:
            await call()
        except TransportUnavailable:
            return False
        return True

    await eventually(answers)


async def hasty(server: RedisServer) -> RedisGatewayWire:
    """A wire that waits for no answer long; on a slow machine it takes more than one try."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await connect_gateway(server.url, options=HASTY)
            except TransportUnavailable:
                await asyncio.sleep(0.02)


async def test_server_that_is_gone_is_unavailable_within_the_deadline(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    own_server.kill()
    for call in (
        gateway.ping(),
        gateway.submit(record("r1"), max_queued=9),
        gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=5000),
        engine.wait_bell(MODEL, timeout_ms=5000),
        engine.publish({GATEWAY: frame([1])}),
    ):
        async with asyncio.timeout(60):
            with pytest.raises(TransportUnavailable):
                await call


async def test_server_that_does_not_answer_is_unavailable_within_the_deadline(
    own_server: RedisServer,
) -> None:
    wire = await hasty(own_server)
    own_server.pause()
    try:
        async with asyncio.timeout(60):
            with pytest.raises(TransportUnavailable):
                await wire.ping()
            with pytest.raises(TransportUnavailable):
                await wire.read_out(GATEWAY, FIRST_FRAME, block_ms=10)
    finally:
        own_server.resume()

    # the late answer to the first question is nobody's answer now
    async def no_depth() -> None:
        assert await wire.queue_depth(MODEL) == 0

    await available(no_depth)
    await wire.close()


async def test_restarted_empty_server_is_used_again_with_the_same_wires(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await gateway.submit(record("runs"), max_queued=9)
    await claim(engine)
    await gateway.submit(record("waits"), max_queued=9)
    own_server.restart(empty=True)
    await available(gateway.ping)
    await available(engine.ping)

    renewed = await engine.renew(MODEL, "e-1", {"runs": 1}, lease_ms=LEASE_MS)
    assert list(renewed.lost) == ["runs"]
    await gateway.submit(record("runs", attempt=1), max_queued=9, resume=entry([1, 2]))
    await gateway.submit(record("waits"), max_queued=9)
    async with asyncio.timeout(30):
        while not await engine.wait_bell(MODEL, timeout_ms=200):
            pass
    taken = await claim(engine)
    assert set(taken) == {"runs", "waits"}
    assert taken["runs"].attempt == 2
    assert list(taken["runs"].delivered[0]) == [1, 2]
    assert await engine.publish({GATEWAY: frame([3], attempt=2, first=2)})
    assert await gateway.cancel(MODEL, "waits", mark())
    assert await finish(engine, "runs", attempt=2)


async def test_restarted_server_with_its_file_knows_everything(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("runs"), max_queued=9)
    await claim(engine)
    await gateway.submit(record("waits"), max_queued=9)
    own_server.restart(empty=False)
    await available(engine.ping)
    renewed = await engine.renew(MODEL, "e-1", {"runs": 1}, lease_ms=LEASE_MS)
    assert not renewed.lost
    assert set(await claim(engine, "e-2")) == {"waits"}
    assert await finish(engine, "runs")


async def test_outage_longer_than_the_leases_moves_no_request(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    other = await connect_engine(own_server.url, options=OPTIONS)
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    own_server.kill()
    for wire in (engine, other):
        with pytest.raises(TransportUnavailable):
            await wire.ping()
    await asyncio.sleep(2 * SHORT_MS / 1000)
    own_server.start()
    await available(other.ping)

    # the lease has expired, but its owner could not renew it: it is given the time to
    assert await claim(other, "e-2", lease_ms=60_000) == {}
    renewed = await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
    assert not renewed.lost
    # when it does not, the request moves after all
    await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=1)
    await asyncio.sleep(0.6)
    assert set(await claim(other, "e-2", lease_ms=1000)) == {"r1"}
    await other.close()


async def test_outage_longer_than_a_gateways_lease_cancels_nothing(
    own_server: RedisServer, gateway: RedisGatewayWire
) -> None:
    patient, early = [
        await connect_engine(own_server.url, options=replace(OPTIONS, reap_after_outage_s=after_s))
        for after_s in (600, 0.2)
    ]
    await gateway.beat_gateway(GATEWAY, ttl_ms=SHORT_MS)
    own_server.command("ZADD", "hr:gateways", "1", "gw-dead")
    await gateway.submit(record("r1"), max_queued=9)
    own_server.kill()
    for engine in (patient, early):
        with pytest.raises(TransportUnavailable):
            await engine.ping()
    own_server.start()
    for engine in (patient, early):
        await available(engine.ping)
    await patient.reap(MODEL)
    assert b"gw-dead" in own_server.command("ZRANGE", "hr:gateways", "0", "-1")
    await asyncio.sleep(0.2)
    await early.reap(MODEL)
    assert b"gw-dead" not in own_server.command("ZRANGE", "hr:gateways", "0", "-1")
    for engine in (patient, early):
        await engine.close()


async def test_blocked_reads_survive_a_restart(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    got: list[int] = []

    async def read() -> None:
        after = FIRST_FRAME
        while not got:
            try:
                entries = await gateway.read_out(GATEWAY, after, block_ms=500)
            except TransportUnavailable:
                await asyncio.sleep(0.05)
                continue
            got.extend(len(entries) for _ in entries)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(own_server.restart, empty=True)
        await available(lambda: gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS))
        await available(lambda: engine.publish({GATEWAY: frame([1])}))
    assert got


async def test_flushed_scripts_are_sent_again(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    own_server.command("SCRIPT", "FLUSH")
    await gateway.submit(record("r2"), max_queued=9)
    own_server.command("SCRIPT", "FLUSH")
    assert set(await claim(engine)) == {"r1", "r2"}
    own_server.command("SCRIPT", "FLUSH")
    logged = await engine.append_logs("e-1", [("r1", 1, entry([1])), ("r2", 1, entry([1]))])
    assert [each.ours for each in logged] == [True, True]


async def test_lost_group_is_made_again_and_nothing_runs_twice(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for i in range(4):
        await gateway.submit(record(f"r{i}"), max_queued=9)
    assert set(await claim(engine, credit=2)) == {"r0", "r1"}
    stream = f"hr:{{{MODEL}}}:q:1:acme"
    assert own_server.command("XGROUP", "DESTROY", stream, "engines") == b":1\r\n"

    assert set(await claim(engine, "e-2")) == {"r2", "r3"}

    assert await claim(engine, "e-2") == {}
    for name, owner in (("r0", "e-1"), ("r1", "e-1"), ("r2", "e-2"), ("r3", "e-2")):
        assert await finish(engine, name, name=owner)
    assert own_server.command("EXISTS", stream) == b":0\r\n"


async def test_replica_is_unavailable_until_it_is_promoted(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    own_server.command("REPLICAOF", "127.0.0.1", "1")
    for call in (
        gateway.submit(record("r2"), max_queued=9),
        gateway.cancel(MODEL, "r1", mark()),
        engine.claim(MODEL, "e-1", credit=1, lease_ms=LEASE_MS),
        engine.wait_bell(MODEL, timeout_ms=50),
        gateway.ping(),
    ):
        with pytest.raises(TransportUnavailable):
            await call
    own_server.command("REPLICAOF", "NO", "ONE")
    await gateway.ping()
    await gateway.submit(record("r2"), max_queued=9)
    assert set(await claim(engine)) == {"r1", "r2"}


async def test_full_server_takes_no_new_work_and_lets_what_runs_end(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for i in range(3):
        await gateway.submit(record(f"r{i}"), max_queued=9)
    await claim(engine, credit=1)
    own_server.command("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(TransportUnavailable, match=r"(?i)memory"):
        await gateway.submit(record("r3"), max_queued=9)

    assert await gateway.queue_depth(MODEL) == 2
    assert await gateway.cancel(MODEL, "r2", mark())
    assert set(await claim(engine)) == {"r1"}
    assert await engine.publish({GATEWAY: frame([1])})
    assert (await engine.append_log("e-1", "r0", 1, entry([1]))).ours
    assert not (await engine.renew(MODEL, "e-1", {"r0": 1, "r1": 1}, lease_ms=LEASE_MS)).lost
    assert await finish(engine, "r0")
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    await gateway.submit(record("r3"), max_queued=9)
    assert set(await claim(engine)) == {"r3"}


async def test_closed_wire_is_unavailable(gateway: RedisGatewayWire) -> None:
    await gateway.close()
    with pytest.raises(TransportUnavailable):
        await gateway.ping()
    with pytest.raises(TransportUnavailable):
        await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1)


async def test_cancelled_call_leaves_no_answer_for_the_next(
    own_server: RedisServer, gateway: RedisGatewayWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    for _ in range(20):
        call = asyncio.ensure_future(gateway.request_state("r1"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await gateway.queue_depth(MODEL) == 1


async def test_busy_wire_refuses_rather_than_waits_for_ever(own_server: RedisServer) -> None:
    options = replace(HASTY, op_timeout_s=0.5, max_connections=2)
    wire = await connect_gateway(own_server.url, options=options)
    own_server.pause()
    try:
        async with asyncio.timeout(20):
            calls = (wire.ping() for _ in range(6))
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(each, TransportUnavailable) for each in results)
    finally:
        own_server.resume()
        await wire.close()


async def test_engine_that_was_stopped_for_long_changes_nothing_when_it_wakes(
    own_server: RedisServer, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    await engine.publish({GATEWAY: frame([1, 2])})
    await asyncio.sleep(2 * SHORT_MS / 1000)
    successor = await connect_engine(own_server.url, options=OPTIONS)
    taken = await claim(successor, "e-2")
    assert list(taken["r1"].delivered[0]) == [1, 2]
    assert await finish(successor, "r1", name="e-2", attempt=2, last=entry([3], first=2))
    before = own_server.command("DEBUG", "DIGEST")
    assert before.startswith(b"+"), before

    assert not (await engine.append_log("e-1", "r1", 1, entry([9], first=2))).ours
    assert not await finish(engine, "r1", last=entry([9], first=2), generated=99)
    assert list((await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)).lost) == ["r1"]
    await engine.release(MODEL, "e-1", {"r1": 1})

    assert own_server.command("DEBUG", "DIGEST") == before
    await successor.close()


async def test_what_reads_one_record_says_that_it_cannot_be_read(
    own_server: RedisServer, gateway: RedisGatewayWire
) -> None:
    own_server.command("HSET", keys.api_key("k1"), "revoked_ms", "7")
    with pytest.raises(CommandFailed, match="the API key k1"):
        await gateway.api_key("k1")
    own_server.command("HSET", keys.state("r1"), "status", "odd")
    with pytest.raises(CommandFailed, match="status"):
        await gateway.request_state("r1")
    own_server.command("SET", keys.card(MODEL), b"\xff\xff")
    with pytest.raises(CommandFailed, match="card"):
        await gateway.card(MODEL)


async def test_a_deleted_key_that_is_asked_for_is_remembered_for_longer(
    own_server: RedisServer, gateway: RedisGatewayWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_keys, "_MOST", 2)
    own_server.command("ZADD", keys.FORGOTTEN_KEYS, "1", "k1", "2", "k2")
    assert await gateway.api_key_is_forgotten("k1")
    own_server.command("HSET", keys.api_key("k3"), "revoked_ms", "7")
    assert await gateway.forget_api_key("k3")
    assert not await gateway.api_key_is_forgotten("k2")
    assert await gateway.api_key_is_forgotten("k1")
    assert await gateway.api_key_is_forgotten("k3")
