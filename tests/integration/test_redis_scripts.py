"""Each script against a real server: the keys it leaves, and the keys it does not touch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

import pytest
from headrace_contracts import keys
from headrace_contracts.codes import FinishReason
from headrace_contracts.keys import ENGINE_GROUP, HOLE
from headrace_contracts.limits import INLINE_RECORD_BYTES, MAX_RECORD_BYTES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Control, LogEntry, ModelCard, Usage
from headrace_transport import api_keys
from headrace_transport.connection import (
    RedisEngineWire,
    RedisGatewayWire,
    connect_engine,
    connect_gateway,
)
from headrace_transport.errors import CommandFailed
from headrace_transport.interface import FIRST_FRAME, ApiKey
from headrace_transport.options import WireOptions
from headrace_transport.replies import (
    Argument,
    Reply,
    as_entries,
    as_fields,
    as_int,
    as_list,
    as_text,
)
from headrace_transport.scripting import script
from headrace_transport.server import Server
from support.redis import RedisServer
from support.wire import ScriptedEngine
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

STREAM = keys.queue(MODEL, 1, "acme")
FOR_EVER = -1
"""PTTL of what has no end."""


class Redis:
    """Looks at the server behind the wire's back."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def __call__(self, *words: str | int | bytes | float) -> Reply:
        return await self.server.command(*words)

    async def keys(self) -> set[str]:
        return {as_text(name) for name in as_list(await self("KEYS", "*"))}

    async def pending(self) -> int:
        reply = await self.server.command("EXISTS", STREAM)
        return as_int(as_list(await self("XPENDING", STREAM, ENGINE_GROUP))[0]) if reply else 0

    async def state(self, name: str) -> dict[str, str]:
        fields = as_fields(await self("HGETALL", keys.state(name)))
        return {field: value.decode(errors="replace") for field, value in fields.items()}

    async def members(self, zset: str) -> set[str]:
        return {as_text(name) for name in as_list(await self("ZRANGE", zset, 0, -1))}


@pytest.fixture
def redis(link: Server) -> Redis:
    return Redis(link)


# all of them
def scripts() -> list[str]:
    folder = files("headrace_transport") / "scripts"
    return sorted(each.name.removesuffix(".lua") for each in folder.iterdir())


def test_every_script_has_flags_and_a_header_and_no_scan() -> None:
    folder = files("headrace_transport") / "scripts"
    for name in scripts():
        text = (folder / f"{name}.lua").read_text()
        if name != "common":
            assert text.startswith("#!lua"), name
            assert re.search(r"^-- (prelude common|KEYS)", text, re.MULTILINE), name
        assert not re.search(r"'(KEYS|SCAN|MAXLEN|HGETALL|HKEYS|HVALS)'", text) or name in (
            # the dead letters are no work, and a process's hash has few fields
            "claim",
            "bury",
            "present",
        ), name


def test_no_script_trims_a_work_stream() -> None:
    folder = files("headrace_transport") / "scripts"
    for name in scripts():
        for line in (folder / f"{name}.lua").read_text().splitlines():
            if "MAXLEN" in line:
                assert "K.dlq" in line, (name, line)


def test_group_of_the_scripts_is_the_contracts() -> None:
    assert f"local GROUP = '{ENGINE_GROUP}'" in script("claim").text


@pytest.mark.parametrize("name", [name for name in scripts() if name != "common"])
async def test_script_compiles(redis: Redis, name: str) -> None:
    assert as_text(await redis("SCRIPT", "LOAD", script(name).text)) == script(name).sha


# submit
async def test_submit_writes_entry_state_depth_tenant_and_bell(
    redis: Redis, gateway: RedisGatewayWire
) -> None:
    await gateway.submit(record("r1", deadline_ms=1 << 50), max_queued=9)
    assert await redis.keys() == {
        STREAM,
        keys.state("r1"),
        keys.queued(MODEL),
        keys.tenants(MODEL, 1),
        keys.bell(MODEL),
        keys.sources(MODEL),
        keys.requests_of(MODEL, GATEWAY),
        keys.running("acme", "key1"),
        keys.GATEWAYS,
    }
    assert as_int(await redis("ZSCORE", keys.queued(MODEL), "r1")) == 1 << 50
    ((_, fields),) = as_entries(await redis("XRANGE", STREAM, "-", "+"))
    assert fields["id"] == b"r1"
    assert fields["record"] == record("r1", deadline_ms=1 << 50).SerializeToString()


async def test_submit_refused_leaves_nothing(redis: Redis, gateway: RedisGatewayWire) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    before = await redis("DEBUG", "DIGEST")
    with pytest.raises(Exception, match="limit is 1"):
        await gateway.submit(record("r2"), max_queued=1)
    with pytest.raises(Exception, match="limit is 1"):
        await gateway.submit(record("r2"), max_queued=9, max_concurrency=1)
    assert await redis("DEBUG", "DIGEST") == before


async def test_submit_puts_a_large_record_beside_the_stream(
    redis: Redis, gateway: RedisGatewayWire
) -> None:
    big = record("big", prompt=[99_999] * INLINE_RECORD_BYTES)
    await gateway.submit(big, max_queued=9)
    ((_, fields),) = as_entries(await redis("XRANGE", STREAM, "-", "+"))
    assert fields == {"id": b"big"}
    assert await redis("GET", keys.body("big")) == big.SerializeToString()


# claim
async def test_claim_moves_a_request_from_queue_to_lease(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1", n=2), max_queued=9)
    await claim(engine)
    assert await redis("HGET", keys.leases(MODEL), "r1") == f"e-1 1 {GATEWAY} 10 2".encode()
    assert await redis.members(keys.expiries(MODEL)) == {"r1"}
    assert await redis("SMEMBERS", keys.holding(MODEL, "e-1")) == [b"r1"]
    assert await redis.members(keys.queued(MODEL)) == set()
    assert await redis.pending() == 1
    state = await redis.state("r1")
    assert (state["status"], state["attempt"], state["owner"]) == ("running", "1", "e-1")


@pytest.mark.parametrize(("over", "runs"), [(0, {"r1"}), (1, set[str]())])
async def test_a_successor_takes_no_record_that_is_larger_than_any_that_was_queued(
    over: int, runs: set[str], redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    made = record("r1", prompt=[99_999] * INLINE_RECORD_BYTES)
    await gateway.submit(made, max_queued=9)
    taken = await claim(engine)
    await engine.release(MODEL, "e-1", {"r1": taken["r1"].attempt})
    body = made.SerializeToString()
    made.cache_salt = bytes(MAX_RECORD_BYTES + over - len(body) - len(b"\x00" * 5))
    assert made.ByteSize() == MAX_RECORD_BYTES + over
    await redis("SET", keys.body("r1"), made.SerializeToString())
    assert set(await claim(engine)) == runs


@pytest.mark.parametrize(("over", "runs"), [(0, {"r1"}), (1, set[str]())])
async def test_claim_takes_no_record_in_its_stream_that_is_larger_than_submit_puts_there(
    over: int, runs: set[str], redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    made = record("r1")
    await gateway.submit(made, max_queued=9)
    made.cache_salt = bytes(INLINE_RECORD_BYTES)
    made.cache_salt = bytes(2 * INLINE_RECORD_BYTES - made.ByteSize() + over)
    assert made.ByteSize() == INLINE_RECORD_BYTES + over
    entry_id = await redis("XADD", STREAM, "*", "id", "r1", "record", made.SerializeToString())
    await redis("HSET", keys.state("r1"), "entry", as_text(entry_id))
    assert set(await claim(engine)) == runs
    letters = as_entries(await redis("XRANGE", keys.dead_letters(MODEL), "-", "+"))
    assert [fields["reason"] for _, fields in letters] == (
        [] if runs else [b"its record is gone or too large"]
    )


async def test_claim_acknowledges_tombstones(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await gateway.cancel(MODEL, "r1", mark())
    # an entry that nobody has read is never deleted
    assert await redis("XLEN", STREAM) == 1
    assert await claim(engine) == {}
    assert await redis.pending() == 0
    assert await redis("EXISTS", STREAM) == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (["junk", b"\xff\xfe"], "no id"),
        (["record", b"{}"], "no id"),
        (["id", "stranger", "record", b"\x08\x01"], "no state"),
        (["id", "huge", "record", b"x" * 20_000_000], "no state"),
    ],
)
async def test_claim_buries_entries_that_are_nobodys(
    redis: Redis,
    gateway: RedisGatewayWire,
    engine: RedisEngineWire,
    fields: list[str | bytes],
    reason: str,
) -> None:
    await gateway.submit(record("first"), max_queued=9)
    await redis("XADD", STREAM, "*", *fields)
    await gateway.submit(record("last"), max_queued=9)

    assert set(await claim(engine)) == {"first", "last"}

    ((_, letter),) = as_entries(await redis("XRANGE", keys.dead_letters(MODEL), "-", "+"))
    assert letter["reason"] == reason.encode()
    assert all(len(value) <= 1024 for value in letter.values())
    for name in ("first", "last"):
        assert await finish(engine, name)
    assert await redis.pending() == 0


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"\x08\x07\x12\x02r1", b""])
async def test_claim_buries_records_that_cannot_be_read_and_tells_the_caller(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire, data: bytes
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    ((name, _),) = as_entries(await redis("XRANGE", STREAM, "-", "+"))
    # the same entry with other bytes: the stream is written anew
    await redis("DEL", STREAM)
    await redis("XGROUP", "CREATE", STREAM, ENGINE_GROUP, "0", "MKSTREAM")
    await redis("XADD", STREAM, name, "id", "r1", "record", data)
    await gateway.submit(record("r2"), max_queued=9)

    assert set(await claim(engine)) == {"r2"}

    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.ERROR)
    letters = as_entries(await redis("XRANGE", keys.dead_letters(MODEL), "-", "+"))
    assert [letter["id"] for _, letter in letters] == [b"r1"]
    frames = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert "r1" in str(frames[-1].item)
    assert await finish(engine, "r2")
    assert await redis.pending() == 0


async def test_claim_of_what_was_lost_counts_a_crash_and_keeps_one_pending_entry(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    for attempt in (1, 2):
        taken = await claim(engine, f"e-{attempt}", lease_ms=1)
        assert taken["r1"].crashes == attempt - 1
        assert await redis.pending() == 1
        await redis("DEBUG", "SLEEP", 0.005)
    assert await redis("EXISTS", keys.holding(MODEL, "e-1")) == 0


async def test_claim_after_a_lost_group_leaves_waiting_suspects_alone(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("held"), max_queued=9)
    assert set(await claim(engine, "busy")) == {"held"}
    await gateway.submit(record("suspect"), max_queued=9)
    for attempt in (1, 2):
        await claim(engine, f"dead-{attempt}", lease_ms=1)
        await redis("DEBUG", "SLEEP", 0.005)
    await gateway.submit(record("a", band=2), max_queued=9)
    await redis("SET", keys.quarantine(MODEL), "another-engine")
    assert set(await claim(engine, "busy")) == {"a"}
    await redis("XGROUP", "DESTROY", STREAM, ENGINE_GROUP)
    await gateway.submit(record("b"), max_queued=9)
    assert set(await claim(engine, "busy")) == {"b"}
    assert await redis.members(keys.suspects(MODEL)) == {"suspect"}


# cancel
async def test_cancel_nudges_the_owner_on_a_stream_that_ends(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await gateway.cancel(MODEL, "r1", mark())
    assert as_int(await redis("PTTL", keys.control("e-1"))) > 0
    ((_, fields),) = as_entries(await redis("XRANGE", keys.control("e-1"), "-", "+"))
    assert Control.FromString(fields["control"]).cancel.id == "r1"
    assert await redis("HGET", keys.cancels(MODEL), "r1") == mark().SerializeToString()


@pytest.mark.parametrize("n", ["2", "junk"])
async def test_marks_of_a_request_go_with_it_however_many_choices_it_says_to_have(
    n: str, redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1", n=2), max_queued=9)
    await gateway.submit(record("r2", slot=20, n=2), max_queued=9)
    await claim(engine)
    for name in ("r1", "r2"):
        await gateway.cancel(MODEL, name, mark(choice=1))
    await redis("HSET", keys.state("r1"), "n", n)
    assert await finish(engine, "r1")
    assert await redis("HKEYS", keys.cancels(MODEL)) == [b"r2/1"]


async def test_cancel_of_a_request_that_changed_meanwhile_does_nothing(
    redis: Redis, gateway: RedisGatewayWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    before = await redis("DEBUG", "DIGEST")
    for attempt, reader, slot in (("1", GATEWAY, "10"), ("0", "gw-2", "10"), ("0", GATEWAY, "9")):
        stale = ["r1", b"mark", "", b"nudge", 3, b"frame", attempt, reader, slot, b"usage"]
        assert await redis.server.run_model("cancel", MODEL, stale) == b"changed"
    assert await redis("DEBUG", "DIGEST") == before
    assert await gateway.cancel(MODEL, "r1", mark())


# attach
async def test_attach_moves_the_request_to_the_other_gateways_set(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await gateway.attach("r1", "gw-2", 5, 0)
    await gateway.attach("r1", "gw-2", 5, 0)
    assert await redis("SMEMBERS", keys.requests_of(MODEL, "gw-2")) == [b"r1"]
    assert await redis("EXISTS", keys.requests_of(MODEL, GATEWAY)) == 0
    assert (await redis.state("r1"))["past"] == f"{GATEWAY} 10 "
    assert await redis("HGET", keys.leases(MODEL), "r1") == b"e-1 1 gw-2 5 1"


# renew, release
async def test_renew_moves_the_expiry(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    first = as_int(await redis("ZSCORE", keys.expiries(MODEL), "r1"))
    await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
    assert as_int(await redis("ZSCORE", keys.expiries(MODEL), "r1")) >= first + LEASE_MS - SHORT_MS


async def test_release_makes_an_orphan(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await engine.release(MODEL, "e-1", {"r1": 1})
    assert await redis.members(keys.orphans(MODEL)) == {"r1"}
    assert await redis.members(keys.queued(MODEL)) == {"r1"}
    for gone in (keys.leases(MODEL), keys.expiries(MODEL), keys.holding(MODEL, "e-1")):
        assert await redis("EXISTS", gone) == 0
    assert (await redis.state("r1"))["crashes"] == "0"


async def test_supersede_moves_the_expiry_to_now_and_forgets_the_process(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    old, new = "e-00000001", "e-00000002"
    await redis("ZADD", keys.engines(MODEL), 1 << 50, old, 1 << 50, new)
    await redis("HSET", keys.engine(old), "state", "ready")
    await redis("XADD", keys.control(old), "*", "control", "x")
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, old)
    await redis("DEL", keys.bell(MODEL))
    # a member of the set whose lease went to another is nobody's to end
    await redis("SADD", keys.holding(MODEL, old), "r2")
    await redis("HSET", keys.leases(MODEL), "r2", f"{new} 2 {GATEWAY} 11 1")
    await redis("ZADD", keys.expiries(MODEL), 1 << 50, "r2")

    assert await engine.supersede(MODEL, new) == 1

    now = as_int(as_list(await redis("TIME"))[0]) * 1000 + 999
    assert as_int(await redis("ZSCORE", keys.expiries(MODEL), "r1")) <= now
    assert as_int(await redis("ZSCORE", keys.expiries(MODEL), "r2")) == 1 << 50
    assert await redis.members(keys.engines(MODEL)) == {new}
    assert await redis("EXISTS", keys.engine(old), keys.control(old)) == 0
    assert await redis("LLEN", keys.bell(MODEL)) == 1


# finish
async def test_finish_leaves_state_and_log_alone_and_both_end(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for name in ("r1", "r2"):
        await gateway.submit(record(name, prompt=[1] * 20_000), max_queued=9)
    await gateway.cancel(MODEL, "r2", mark(FinishReason.STOP, choice=0))
    await claim(engine)
    await engine.append_log("e-1", "r1", 1, entry([1]))
    await gateway.cancel(MODEL, "r1", mark())
    await finish(engine, "r1", last=entry([2], first=1), generated=2)
    await claim(engine)
    await engine.wait_bell(MODEL, timeout_ms=1)

    left = await redis.keys()
    for name in sorted(left):
        if "{r" in name:
            assert 0 < as_int(await redis("PTTL", name)) <= 3_600_000, name
    assert {name for name in left if "{r" in name} == {
        keys.state("r1"),
        keys.log("r1"),
        keys.state("r2"),
    }
    assert {name for name in left if "{r" not in name} <= {
        keys.control("e-1"),
        keys.out(GATEWAY),
        keys.GATEWAYS,
        keys.sources(MODEL),
        keys.floors(MODEL),
        keys.idle_tenants(MODEL, 1),
    }


# bury
async def test_bury_keeps_the_record_and_the_reason(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    usage = Usage(prompt_tokens=3)
    assert not (await engine.bury(MODEL, "e-2", "r1", 1, why="x", usage=usage)).ours
    assert (await engine.bury(MODEL, "e-1", "r1", 1, why="because", usage=usage)).ours
    ((_, letter),) = as_entries(await redis("XRANGE", keys.dead_letters(MODEL), "-", "+"))
    assert (letter["reason"], letter["id"]) == (b"because", b"r1")
    assert letter["record"] == record("r1").SerializeToString()
    assert await redis.pending() == 0
    assert as_int(await redis("PTTL", keys.dead_letters(MODEL))) > 0


# reap
async def test_reap_forgets_requests_that_nobody_knows(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await redis("SADD", keys.sources(MODEL), "gw-gone")
    await redis("SADD", keys.requests_of(MODEL, "gw-gone"), "ghost")
    for _ in range(3):
        await engine.reap(MODEL)
    assert await redis("EXISTS", keys.requests_of(MODEL, "gw-gone")) == 0
    assert await redis("EXISTS", keys.sources(MODEL)) == 0


async def test_reap_spares_the_requests_of_a_gateway_within_its_grace(
    redis: Redis, server: RedisServer, gateway: RedisGatewayWire
) -> None:
    options = WireOptions(resume_grace_ms=60_000, sign_of_life_ms=1)
    patient = await connect_gateway(server.url, options=options)
    engine = await connect_engine(server.url, options=options)
    await patient.submit(record("r1"), max_queued=9)
    await redis("DEBUG", "SLEEP", 0.005)
    await engine.reap(MODEL)
    assert await gateway.queue_depth(MODEL) == 1
    hasty = await connect_engine(server.url)
    await hasty.reap(MODEL)
    assert await gateway.queue_depth(MODEL) == 0
    for wire in (patient, engine, hasty):
        await wire.close()


# append_log
async def test_reap_takes_away_the_first_places_of_what_ended_in_the_queue(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    for name in ("gone-1", "gone-2", "waits", "gone-3"):
        await gateway.submit(record(name), max_queued=9)
    for name in ("gone-1", "gone-2", "gone-3"):
        await gateway.cancel(MODEL, name, mark())
    assert as_int(await redis("XLEN", STREAM)) == 4

    await gateway.reap(MODEL)

    left = as_entries(await redis("XRANGE", STREAM, "-", "+"))
    assert [fields["id"] for _, fields in left] == [b"waits", b"gone-3"]
    assert await redis.pending() == 0
    assert set(await claim(engine)) == {"waits"}


async def test_many_keys_are_read_in_parts(
    gateway: RedisGatewayWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"hrk_{i}" for i in range(5)]
    for name in reversed(names):
        await gateway.put_api_key(
            ApiKey(
                public_id=name,
                digest=bytes(32),
                name="",
                tenant="acme",
                scopes=frozenset(),
                models=frozenset(),
                created_ms=1,
                expires_ms=None,
                revoked_ms=None,
                band=1,
            )
        )
    sizes: list[int] = []
    answers = Server.answers

    async def counted(
        server: Server, commands: Sequence[Sequence[Argument]]
    ) -> list[Reply | CommandFailed]:
        sizes.append(len(commands))
        return await answers(server, commands)

    monkeypatch.setattr(Server, "answers", counted)
    monkeypatch.setattr(api_keys, "_AT_ONCE", 2)
    assert [key.public_id for key in await gateway.api_keys()] == names
    assert sizes == [2, 2, 1]


async def test_sweep_makes_files_stay_that_a_card_names(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    named, other = await engine.put_blob(b"tokenizer"), await engine.put_blob(b"left")
    week_ms = WireOptions().blob_ttl_ms
    assert week_ms - LEASE_MS < as_int(await redis("PTTL", keys.blob(named))) <= week_ms
    await engine.put_card(
        ModelCard(version=WIRE_VERSION, model=MODEL, files={"tokenizer.json": f"sha256:{named}"})
    )
    assert as_int(await redis("PTTL", keys.blob(named))) == FOR_EVER
    assert await engine.put_blob(b"tokenizer") == named
    assert as_int(await redis("PTTL", keys.blob(named))) == FOR_EVER
    for digest in (named, other):
        await redis("PEXPIRE", keys.blob(digest), LEASE_MS)
    await gateway.reap(MODEL)
    assert as_int(await redis("PTTL", keys.blob(named))) == FOR_EVER
    assert as_int(await redis("PTTL", keys.blob(other))) <= LEASE_MS
    assert await engine.put_blob(b"left") == other
    assert as_int(await redis("PTTL", keys.blob(other))) > LEASE_MS


async def test_files_of_engines_that_put_cards_at_once(
    redis: Redis, engine: RedisEngineWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [await engine.put_blob(name) for name in (b"old", b"new", b"both")]
    old, new, both = digests

    def card(model: str, *digests: str) -> ModelCard:
        return ModelCard(
            version=WIRE_VERSION, model=model, files={d: f"sha256:{d}" for d in digests}
        )

    await engine.put_card(card(MODEL, old, both))
    run, others = Server.run, [card("second", both)]

    async def interrupted(
        server: Server, name: str, names: Sequence[str], arguments: Sequence[Argument]
    ) -> Reply:
        """Another engine's card comes after the first has read what files are named."""
        if name == "touch_files" and others:
            await engine.put_card(others.pop())
        return await run(server, name, names, arguments)

    monkeypatch.setattr(Server, "run", interrupted)
    await engine.put_card(card(MODEL, new))
    assert not others
    left = {digest: as_int(await redis("PTTL", keys.blob(digest))) for digest in digests}
    assert left.pop(old) > LEASE_MS
    assert set(left.values()) == {FOR_EVER}

    # what is named no more when it is made to stay ends all the same
    others = [card(MODEL, both)]
    await redis("PEXPIRE", keys.blob(new), LEASE_MS)
    await engine.reap(MODEL)
    assert not others
    assert as_int(await redis("PTTL", keys.blob(new))) > 0


async def test_a_card_that_cannot_be_read_keeps_files_from_ending(
    redis: Redis, engine: RedisEngineWire
) -> None:
    old = await engine.put_blob(b"old")
    files = {"tokenizer.json": f"sha256:{old}"}
    await engine.put_card(ModelCard(version=WIRE_VERSION, model=MODEL, files=files))
    await redis("ZADD", keys.MODELS, "+inf", "damaged")
    await redis("SET", keys.card("damaged"), b"\xff")
    await engine.put_card(ModelCard(version=WIRE_VERSION, model=MODEL))
    assert as_int(await redis("PTTL", keys.blob(old))) == FOR_EVER


async def test_when_a_key_was_deleted_is_counted_in_milliseconds(
    redis: Redis, gateway: RedisGatewayWire
) -> None:
    await redis("HSET", keys.api_key("hrk_1"), "name", "x")
    assert await gateway.forget_api_key("hrk_1")

    async def at_ms() -> int:
        return as_int(await redis("ZSCORE", keys.FORGOTTEN_KEYS, "hrk_1"))

    seconds, _ = as_list(await redis("TIME"))
    assert abs(await at_ms() - as_int(seconds) * 1000) < 60_000
    # of an earlier release: in seconds, so that it counts as older than any other
    await redis("ZADD", keys.FORGOTTEN_KEYS, as_int(seconds), "hrk_1")
    assert await gateway.api_key_is_forgotten("hrk_1")
    assert abs(await at_ms() - as_int(seconds) * 1000) < 60_000


async def test_append_log_of_a_claimed_request_counts_per_choice(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await gateway.submit(record("r1", n=3), max_queued=9)
    await claim(engine)
    rows = LogEntry(
        version=1, attempt=1, choices=[2, 0], firsts=[0, 0], counts=[1, 2], tokens=[7, 8, 9]
    )
    logged = await engine.append_log("e-1", "r1", 1, rows)
    assert list(logged.lengths) == [2, 0, 1]
    assert (await redis.state("r1"))["lengths"] == "2,0,1"
    # one row that does not fit keeps the others out
    rows = LogEntry(
        version=1, attempt=1, choices=[1, 0], firsts=[0, 9], counts=[1, 1], tokens=[1, 1]
    )
    logged = await engine.append_log("e-1", "r1", 1, rows)
    assert list(logged.lengths) == [2, 0, 1]


# post, beat, present, depth
async def test_post_does_not_make_the_stream_of_a_gateway_that_is_not_there(
    redis: Redis, engine: RedisEngineWire, gateway: RedisGatewayWire
) -> None:
    assert await engine.publish({"gw-never": frame([1])}) == {}
    assert await redis("EXISTS", keys.out("gw-never")) == 0


async def test_beat_makes_a_hash_that_ends_by_itself(
    redis: Redis, gateway: RedisGatewayWire
) -> None:
    await gateway.beat_gateway(GATEWAY, ttl_ms=5000)
    assert 0 < as_int(await redis("PTTL", keys.gateway(GATEWAY))) <= 5000
    assert await redis.members(keys.GATEWAYS) == {GATEWAY}


async def test_present_leaves_out_who_is_late(redis: Redis, gateway: RedisGatewayWire) -> None:
    await redis("ZADD", keys.engines(MODEL), 1, "e-late")
    await redis("HSET", keys.engine("e-late"), "state", "ready")
    reply = await redis.server.run("present", [keys.engines(MODEL)], [keys.engine(HOLE)])
    assert as_list(reply) == []


async def test_an_engine_whose_hash_is_of_another_type_leaves_the_others(
    redis: Redis, gateway: RedisGatewayWire, engine: RedisEngineWire
) -> None:
    await ScriptedEngine(engine, "e-1", model=MODEL).appear()
    await ScriptedEngine(engine, "e-2", model=MODEL).appear()
    await redis("DEL", keys.engine("e-1"))
    await redis("RPUSH", keys.engine("e-1"), "x")
    assert [each.process for each in await gateway.engines(MODEL)] == ["e-2"]
    assert gateway.damaged.counts["engine"] == 1


async def test_depth_counts_until_the_deadline(redis: Redis, gateway: RedisGatewayWire) -> None:
    await redis("ZADD", keys.queued(MODEL), 1, "past", 1 << 50, "future", "+inf", "none")
    assert await gateway.queue_depth(MODEL) == 2
