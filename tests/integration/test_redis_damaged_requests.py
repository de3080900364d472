"""Requests whose keys somebody damaged: each ends or is left alone, and the others are served."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest
from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import CancelMark, Frame
from headrace_transport.connection import RedisEngineWire, connect_engine, connect_gateway
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import FIRST_FRAME, Claimed
from headrace_transport.options import WireOptions
from headrace_transport.replies import as_list
from headrace_transport.server import Server
from support.redis import RedisServer
from support.waiting import eventually
from support.wires import GATEWAY, LEASE_MS, MODEL, claim, entry, finish, frame, record

JUNK = b"\xff\x00junk"
NUMBERS = ("n", "attempt", "crashes", "prompt", "deadline", "slot")
DAMAGES = [
    "state type",
    *(f"state {name}" for name in (*NUMBERS, "status", "gateway", "lengths", "past")),
    *(f"no {name}" for name in (*NUMBERS, "status", "gateway", "tenant", "entry")),
    *("is n 99999", "is n inf", "is n 0x1f", "is attempt 99999999999", "is attempt 0x1f"),
    *("is slot inf", "is slot 99999999999", "is prompt 1e400", "is prompt -1", "body type"),
    *("member", "field names", "queue type"),
    *(
        "log entry",
        "log field",
        "log type",
        "mark",
        "mark reason",
        "lease",
        "record",
        "frame",
        "fence",
        "control",
    ),
]

ENDLESS = {"state type", "no status", "no gateway", "lease"}
"""Whose state tells nobody that they ended, or whose lease tells nobody who has them."""


async def damage(link: Server, name: str, what: str) -> None:
    """Damages the request ``name``, or what is sent to those that read it."""
    state, log = keys.state(name), keys.log(name)
    commands: list[Sequence[str | bytes]]
    match what.split(" "):
        case ["state", "type"]:
            commands = [("DEL", state), ("RPUSH", state, "x")]
        case ["state", field]:
            commands = [("HSET", state, field, JUNK)]
        case ["no", field]:
            commands = [("HDEL", state, field)]
        case ["is", field, value]:
            commands = [("HSET", state, field, value)]
        case ["body", _]:
            commands = [
                ("HDEL", state, "entry"),
                ("DEL", keys.body(name)),
                ("RPUSH", keys.body(name), "x"),
            ]
        case ["member"]:
            commands = [
                ("ZADD", keys.queued(MODEL), "1", JUNK),
                ("ZADD", keys.queued(MODEL), "1", "a b"),
            ]
        case ["field", "names"]:
            streams = (log, keys.out(GATEWAY), keys.control("e-1"))
            commands = [("XADD", stream, "*", JUNK, "x") for stream in streams]
        case ["queue", "type"]:
            commands = [
                ("DEL", keys.queue(MODEL, 1, "other")),
                ("SET", keys.queue(MODEL, 1, "other"), "x"),
                ("ZADD", keys.tenants(MODEL, 1), "0", "other"),
                ("HSET", state, "tenant", "other"),
            ]
        case ["log", "entry"]:
            commands = [("XADD", log, "*", "entry", JUNK)]
        case ["log", "field"]:
            commands = [("XADD", log, "*", "x", "y")]
        case ["log", "type"]:
            commands = [("DEL", log), ("SET", log, "x")]
        case ["mark"]:
            commands = [("HSET", keys.cancels(MODEL), name, JUNK)]
        case ["mark", "reason"]:  # of a newer version, say: a mark names none
            commands = [("HSET", keys.cancels(MODEL), name, b"\x08\x4d")]
        case ["lease"]:
            commands = [("HSET", keys.leases(MODEL), name, JUNK)]
        case ["record"]:
            stream = keys.queue(MODEL, 1, "acme")
            commands = [("XADD", stream, "*", "id", name, "record", JUNK)]
        case ["control"]:
            commands = [("XADD", keys.control("e-1"), "*", "control", JUNK)]
        case _:
            commands = [("XADD", keys.out(GATEWAY), "*", what, JUNK)]
    await link.pipeline(commands)


async def look_after(engine: RedisEngineWire, names: Sequence[str]) -> None:
    """What an engine does in each of its rounds."""
    await engine.reap(MODEL)
    await engine.renew(MODEL, "e-1", dict.fromkeys(names, 1), lease_ms=LEASE_MS)
    await engine.cancels(MODEL, names)
    await engine.read_control("e-1", "0-0", block_ms=1)


@pytest.mark.parametrize("begun", [False, True])
async def test_the_request_that_is_whole_is_served(server: RedisServer, begun: bool) -> None:
    """``begun``: the damaged ones ran at an engine that is gone."""
    link = Server(server.url, password=None, options=WireOptions())
    gateway, engine = await connect_gateway(server.url), await connect_engine(server.url)
    bad = {f"bad-{i}": what for i, what in enumerate(DAMAGES)}
    names = [*bad, "good"]
    try:
        await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
        for i, name in enumerate(bad):
            await gateway.submit(record(name, slot=100 + i), max_queued=99)
        if begun:
            assert len(await claim(engine, "e-0", credit=len(bad), lease_ms=1)) == len(bad)
            for i, name in enumerate(bad):
                await engine.publish({GATEWAY: frame([7], slot=100 + i)})
                await engine.append_log("e-0", name, 1, entry([7]))
        for name, what in bad.items():
            await damage(link, name, what)
        await look_after(engine, names)
        taken = await claim(engine, "e-1", credit=99)
        assert taken, "what is damaged in part can still run"
        await gateway.submit(record("good", slot=20), max_queued=99)
        assert "good" in await claim(engine, "e-1", credit=99)

        for name, what in bad.items():  # once more, while it runs
            await damage(link, name, what)
        await look_after(engine, names)
        for name, claimed in taken.items():
            attempt = claimed.attempt
            await engine.append_log("e-1", name, attempt, entry([7], attempt=attempt))
            await finish(engine, name, attempt=attempt, last=entry([8], attempt=attempt))
        for name in bad:
            with suppress(CommandFailed):  # told to whoever asked for it
                await gateway.cancel(MODEL, name, CancelMark(reason="FINISH_REASON_CANCELLED"))
        await look_after(engine, names)

        await engine.publish({GATEWAY: frame([1], slot=20)})
        seen = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1)
        assert any(isinstance(each.item, Frame) and list(each.item.slots) == [20] for each in seen)
        assert await finish(engine, "good", generated=1)
        state = await gateway.request_state("good")
        assert state is not None
        assert state.finish is FinishReason.STOP

        told = await link.answers([("HGET", keys.state(name), "status") for name in bad])
        going_on = {
            what for what, status in zip(bad.values(), told, strict=True) if status != b"finished"
        }
        assert going_on == (ENDLESS | {"state status"} if begun else ENDLESS)
        queued = set(as_list(await link.command("ZRANGE", keys.queued(MODEL), 0, -1)))
        assert not queued & {name.encode() for name in bad}, "nothing will take them from there"
    finally:
        for wire in (link, gateway, engine):
            await wire.close()


async def test_slots_beyond_the_last_one_are_damaged(server: RedisServer) -> None:
    link = Server(server.url, password=None, options=WireOptions())
    gateway, engine = await connect_gateway(server.url), await connect_engine(server.url)
    try:
        for n in (1, 2):
            await gateway.submit(record(f"r{n}", n=n), max_queued=9)
            await link.command("HSET", keys.state(f"r{n}"), "slot", 2**32 - 1)
        taken = await claim(engine)
        assert {name: each.record.slot for name, each in taken.items()} == {
            "r1": 2**32 - 1,
            "r2": 0,
        }
    finally:
        for wire in (link, gateway, engine):
            await wire.close()


@pytest.mark.parametrize("owner", ["e-1", JUNK])
async def test_an_engine_whose_lease_was_damaged_takes_a_suspect_and_all_that_comes_after_it(
    server: RedisServer, owner: str | bytes
) -> None:
    link = Server(server.url, password=None, options=WireOptions())
    gateway, engine = await connect_gateway(server.url), await connect_engine(server.url)
    try:
        await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
        await gateway.submit(record("bad", slot=1), max_queued=9)
        await claim(engine, "e-1", lease_ms=1)
        await link.command("HSET", keys.leases(MODEL), "bad", JUNK)
        await link.command("HSET", keys.state("bad"), "owner", owner)
        held = await link.command("SMEMBERS", keys.holding(MODEL, "e-1"))
        assert held == [b"bad"]
        await eventually(lambda: claim(engine, "e-2", lease_ms=1))  # and dies of it
        suspect: dict[str, Claimed] = {}

        async def taken() -> bool:
            suspect.update(await claim(engine, "e-1"))
            return bool(suspect)

        await eventually(taken)
        assert suspect["bad"].alone
        assert await finish(engine, "bad", attempt=suspect["bad"].attempt)
        await gateway.submit(record("good", slot=2), max_queued=9)
        assert set(await claim(engine, "e-1")) == {"good"}
    finally:
        for wire in (link, gateway, engine):
            await wire.close()
