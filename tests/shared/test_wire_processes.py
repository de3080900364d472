"""Processes, model cards and API keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Frame, ModelCard
from headrace_transport.errors import RecordRejected
from headrace_transport.interface import FIRST_FRAME, ApiKey, EngineInfo, GatewayWire
from support.wires import (
    GATEWAY,
    LEASE_MS,
    MODEL,
    OPTIONS,
    SHORT_MS,
    SOON_MS,
    Wires,
    claim,
    finish,
    frame,
    mark,
    record,
)

INFO = EngineInfo(
    process="e-1.boot",
    model=MODEL,
    state="ready",
    running=2,
    waiting=1,
    free_blocks=30,
    total_blocks=64,
)
KEY = ApiKey(
    public_id="hrk_1",
    digest=bytes(range(32)),
    name="laptop; \u00e9",
    tenant="acme",
    scopes=frozenset({"inference", "admin"}),
    models=frozenset({MODEL}),
    created_ms=1_800_000_000_000,
    expires_ms=None,
    revoked_ms=None,
    band=1,
)


async def test_engines_are_listed_while_they_beat(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert await gateway.engines(MODEL) == []
    await engine.beat_engine(INFO, ttl_ms=SOON_MS)
    other = replace(INFO, process="e-2", state="loading")
    await engine.beat_engine(other, ttl_ms=LEASE_MS)
    assert {info.process: info for info in await gateway.engines(MODEL)} == {
        "e-1.boot": INFO,
        "e-2": other,
    }
    await wires.pass_ms(SOON_MS + 50)
    assert await gateway.engines(MODEL) == [other]
    await engine.leave_engine(other)
    assert await gateway.engines(MODEL) == []


async def test_beat_tells_what_changed(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await engine.beat_engine(INFO, ttl_ms=LEASE_MS)
    later = replace(INFO, state="draining", running=0, free_blocks=64)
    await engine.beat_engine(later, ttl_ms=LEASE_MS)
    assert await gateway.engines(MODEL) == [later]
    assert await gateway.engines("another-model") == []


async def test_cards_outlive_their_engines(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert await gateway.cards() == []
    assert await gateway.card(MODEL) is None
    files = {"tokenizer.json": f"sha256:{await engine.put_blob(b'words')}"}
    cards = [
        ModelCard(version=1, model=name, context_tokens=64, files=files)
        for name in ("b/second", "a-first")
    ]
    for card in cards:
        await engine.put_card(card)
    assert await gateway.card("b/second") == cards[0]
    assert await engine.card("a-first") == cards[1]
    assert await gateway.cards() == [cards[1], cards[0]]
    await engine.leave_engine(INFO)
    assert len(await gateway.cards()) == 2


async def test_a_card_is_none_to_engines_once_a_file_of_it_is_lost(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    lost = ModelCard(version=1, model=MODEL, files={"a": f"sha256:{'0' * 64}"})
    await engine.put_card(lost)
    assert await gateway.card(MODEL) == lost
    assert await engine.card(MODEL) is None  # which has its engine put all of it again


async def test_blob_is_found_by_its_checksum(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    data = bytes(range(256)) * 1000
    digest = await engine.put_blob(data)
    assert len(digest) == 64
    assert await engine.put_blob(data) == digest
    assert await gateway.blob(digest) == data
    assert await gateway.blob("0" * 64) is None


async def test_files_stay_while_a_card_names_them(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    files = {name: await engine.put_blob(name.encode()) for name in ("old", "new", "both", "none")}

    def card(model: str, *names: str) -> ModelCard:
        references = {name: f"sha256:{files[name]}" for name in names}
        return ModelCard(version=1, model=model, files=references)

    await engine.put_card(card("first", "old", "both"))
    await engine.put_card(card("second", "both"))
    await engine.put_card(card("first", "new"))
    await wires.pass_ms(OPTIONS.blob_ttl_ms + 50)
    found = {name: await gateway.blob(digest) for name, digest in files.items()}
    assert found == {"old": None, "new": b"new", "both": b"both", "none": None}
    # what ended can be put again
    assert await engine.put_blob(b"old") == files["old"]
    assert await gateway.blob(files["old"]) == b"old"


async def test_api_key_is_kept_as_it_was_put(wires: Wires) -> None:
    gateway = await wires.gateway()
    assert await gateway.api_keys() == []
    assert await gateway.api_key("hrk_1") is None
    limited = replace(
        KEY,
        public_id="hrk_0",
        expires_ms=5,
        max_concurrency=3,
        requests_per_minute=60,
        tokens_per_minute=900,
        models=frozenset(),
    )
    await gateway.put_api_key(KEY)
    await gateway.put_api_key(limited)
    assert await gateway.api_key("hrk_1") == KEY
    assert await gateway.api_keys() == [limited, KEY]
    # what is put again replaces, also what it no longer has
    await gateway.put_api_key(replace(limited, expires_ms=None))
    assert await gateway.api_key("hrk_0") == replace(limited, expires_ms=None)


@pytest.mark.parametrize("model", ["", " ", "two words", "\u00e9"])
async def test_a_key_for_a_model_that_cannot_be_is_not_put(wires: Wires, model: str) -> None:
    gateway = await wires.gateway()
    with pytest.raises(RecordRejected, match="model"):
        await gateway.put_api_key(replace(KEY, models=frozenset({MODEL, model})))
    assert await gateway.api_keys() == []


async def test_revoked_key_says_since_when(wires: Wires) -> None:
    gateway = await wires.gateway()
    await gateway.put_api_key(KEY)
    assert await gateway.revoke_api_key("hrk_1", at_ms=77)
    assert await gateway.api_key("hrk_1") == replace(KEY, revoked_ms=77)
    assert await gateway.revoke_api_key("hrk_1", at_ms=78)  # no end is put off
    assert await gateway.api_key("hrk_1") == replace(KEY, revoked_ms=77)
    assert not await gateway.revoke_api_key("unknown", at_ms=77)
    assert await gateway.api_key("unknown") is None
    assert not await gateway.forget_api_key("hrk_1", over_ms=77)
    assert not await gateway.api_key_is_forgotten("hrk_1")
    assert await gateway.forget_api_key("hrk_1", over_ms=78)
    assert not await gateway.forget_api_key("hrk_1")
    assert await gateway.api_keys() == []
    assert await gateway.api_key_is_forgotten("hrk_1")
    assert not await gateway.api_key_is_forgotten("hrk_2")
    assert not await gateway.revoke_api_key("hrk_1", at_ms=77)
    assert not await gateway.restore_api_key(KEY)
    assert await gateway.api_keys() == []
    assert await gateway.api_key("unknown") is None


async def test_a_key_that_ends_in_time_can_be_revoked_earlier(wires: Wires) -> None:
    gateway = await wires.gateway()
    await gateway.put_api_key(replace(KEY, revoked_ms=2_000_000_000_000))
    assert await gateway.revoke_api_key("hrk_1", at_ms=1_900_000_000_000)
    assert await gateway.api_key("hrk_1") == replace(KEY, revoked_ms=1_900_000_000_000)


@pytest.mark.parametrize(
    ("known", "kept", "end"),
    [(None, None, None), (5, None, 5), (None, 7, 7), (5, 7, 5), (7, 5, 5)],
)
async def test_a_key_that_is_put_back_ends_when_it_first_was_to(
    known: int | None, kept: int | None, end: int | None, wires: Wires
) -> None:
    gateway = await wires.gateway()
    assert await gateway.restore_api_key(replace(KEY, public_id="hrk_0", revoked_ms=kept))
    assert await gateway.api_keys() == [replace(KEY, public_id="hrk_0", revoked_ms=kept)]
    await gateway.put_api_key(replace(KEY, revoked_ms=known, max_concurrency=9))
    assert await gateway.restore_api_key(replace(KEY, revoked_ms=kept))
    assert await gateway.api_key("hrk_1") == replace(KEY, revoked_ms=end)


async def test_a_key_that_cannot_be_is_not_put_back(wires: Wires) -> None:
    gateway = await wires.gateway()
    for wrong in (replace(KEY, tenant="a b"), replace(KEY, models=frozenset({""}))):
        with pytest.raises(RecordRejected):
            await gateway.restore_api_key(wrong)
    assert await gateway.api_keys() == []


async def test_requests_of_a_dead_gateway_are_cancelled(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway("gw-dead", ttl_ms=SHORT_MS)
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await gateway.submit(record("runs"), max_queued=9)
    await gateway.submit(record("runs-dead", gateway="gw-dead"), max_queued=9)
    await claim(engine)
    await gateway.submit(record("waits"), max_queued=9)
    await gateway.submit(record("waits-dead", gateway="gw-dead"), max_queued=9)
    await engine.publish({"gw-dead": frame([1])})
    await engine.reap(MODEL)
    assert await engine.cancels(MODEL, ["runs-dead"]) == {}

    # a submit is a sign of life, so the gateway is dead when it says so itself or was silent
    await gateway.leave_gateway("gw-dead")
    await engine.reap(MODEL)
    await engine.reap(MODEL)

    assert await engine.cancels(MODEL, ["runs", "runs-dead"]) == {"runs-dead": [mark()]}
    state = await gateway.request_state("waits-dead")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.CANCELLED)
    assert await gateway.queue_depth(MODEL) == 1
    assert await engine.publish({"gw-dead": frame([2])}) == {}
    assert await gateway.read_out("gw-dead", FIRST_FRAME, block_ms=1) == []
    assert await finish(engine, "runs-dead")
    await engine.reap(MODEL)
    state = await gateway.request_state("runs")
    assert state is not None
    assert state.status == "running"


async def test_what_a_gateway_hands_over_waits_for_another_and_then_ends(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway("gw-old", ttl_ms=LEASE_MS)
    for name in ("taken", "forgotten"):
        await gateway.submit(record(name, gateway="gw-old"), max_queued=9)
    await claim(engine)
    await engine.publish({"gw-old": frame([1])})

    await gateway.leave_gateway("gw-old", keep_ms=2 * SHORT_MS)

    await engine.reap(MODEL)
    assert await engine.cancels(MODEL, ["taken", "forgotten"]) == {}
    assert len(await gateway.read_out("gw-old", FIRST_FRAME, block_ms=1000)) == 1
    assert await gateway.attach("taken", GATEWAY, 70, 0) is not None
    await wires.pass_ms(3 * SHORT_MS)
    await engine.reap(MODEL)
    assert await engine.cancels(MODEL, ["taken", "forgotten"]) == {"forgotten": [mark()]}


async def test_what_moved_while_it_was_queued_ends_with_the_gateway_that_has_it(
    wires: Wires,
) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1", gateway="gw-old"), max_queued=9)
    await gateway.attach("r1", "gw-new", 70, 0)
    await gateway.leave_gateway("gw-old")
    await engine.reap(MODEL)
    assert await gateway.queue_depth(MODEL) == 1

    await gateway.leave_gateway("gw-new")
    await engine.reap(MODEL)
    state = await gateway.request_state("r1")
    assert state is not None
    assert state.finish is FinishReason.CANCELLED


async def test_silent_gateway_is_reaped_and_may_come_back(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway("gw-slow", ttl_ms=SHORT_MS)
    await engine.publish({"gw-slow": frame([1])})
    await wires.pass_ms(2 * SHORT_MS)
    # late but not reaped: nothing is lost yet
    assert set(await engine.publish({"gw-slow": frame([2])})) == {"gw-slow"}
    await engine.reap(MODEL)
    assert await engine.publish({"gw-slow": frame([3])}) == {}
    await gateway.beat_gateway("gw-slow", ttl_ms=LEASE_MS)
    await engine.publish({"gw-slow": frame([4])})
    (read,) = await gateway.read_out("gw-slow", FIRST_FRAME, block_ms=1000)
    assert read.item == frame([4])


async def test_reaper_ends_what_expired_in_the_queue(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("probe"), max_queued=9)
    state = await gateway.request_state("probe")
    assert state is not None
    await gateway.submit(record("late", deadline_ms=state.created_ms + SHORT_MS), max_queued=9)
    await wires.pass_ms(2 * SHORT_MS)
    await engine.reap(MODEL)
    state = await gateway.request_state("late")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.DEADLINE)
    (terminal,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert isinstance(terminal.item, Frame)
    assert terminal.item.finishes[0].reason == FinishReason.DEADLINE
    assert set(await claim(engine)) == {"probe"}


async def test_a_gateway_ends_what_expired_in_a_queue_without_engines(wires: Wires) -> None:
    gateway = await wires.gateway()
    await gateway.submit(record("probe"), max_queued=9)
    state = await gateway.request_state("probe")
    assert state is not None
    late = record("late", gateway="gw-dead", deadline_ms=state.created_ms + SHORT_MS)
    await gateway.submit(late, max_queued=9)
    await gateway.submit(record("left", gateway="gw-dead"), max_queued=9)
    await gateway.leave_gateway("gw-dead")
    await wires.pass_ms(2 * SHORT_MS)
    await gateway.reap(MODEL)
    assert await ends(gateway, "probe", "late", "left") == {
        "probe": None,
        "late": FinishReason.CANCELLED,  # its gateway is gone: that is seen first
        "left": FinishReason.CANCELLED,
    }
    assert await gateway.live_requests("acme", "key1", limit=9) == ["probe"]


async def test_what_was_cancelled_at_an_engine_that_died_ends_without_a_successor(
    wires: Wires,
) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    for name in ("stopped", "waits"):
        await gateway.submit(record(name), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    await gateway.cancel(MODEL, "stopped", mark())
    await gateway.reap(MODEL)
    assert await ends(gateway, "stopped", "waits") == {"stopped": None, "waits": None}

    await wires.pass_ms(2 * SHORT_MS)
    await gateway.reap(MODEL)

    assert await ends(gateway, "stopped", "waits") == {
        "stopped": FinishReason.CANCELLED,
        "waits": None,
    }
    (terminal,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert isinstance(terminal.item, Frame)
    assert terminal.item.attempts == [2]
    assert await gateway.queue_depth(MODEL) == 1
    [successor] = (await claim(engine, "e-2")).values()
    assert (successor.record.id, successor.attempt, successor.crashes) == ("waits", 2, 1)


async def test_stop_string_that_ended_the_only_choice_ends_a_request_whose_engine_died(
    wires: Wires,
) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.beat_gateway(GATEWAY, ttl_ms=LEASE_MS)
    await gateway.submit(record("one"), max_queued=9)
    await gateway.submit(record("two", n=2, slot=3), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    for name in ("one", "two"):
        await gateway.cancel(MODEL, name, mark(FinishReason.STOP, choice=0))
    await wires.pass_ms(2 * SHORT_MS)

    await gateway.reap(MODEL)

    # The other choice of the second is not done.
    assert await ends(gateway, "one", "two") == {"one": FinishReason.STOP, "two": None}
    (terminal,) = await gateway.read_out(GATEWAY, FIRST_FRAME, block_ms=1000)
    assert isinstance(terminal.item, Frame)
    assert [each.reason for each in terminal.item.finishes] == [FinishReason.STOP]
    [successor] = (await claim(engine, "e-2")).values()
    assert (successor.record.id, list(successor.cancels)) == (
        "two",
        [mark(FinishReason.STOP, choice=0)],
    )


async def test_one_gateway_sweeps_until_it_is_silent(wires: Wires) -> None:
    gateway = await wires.gateway()
    assert await gateway.take_sweep("gw-1", ttl_ms=SHORT_MS)
    assert await gateway.take_sweep("gw-1", ttl_ms=SOON_MS)
    assert not await gateway.take_sweep("gw-2", ttl_ms=SOON_MS)
    await wires.pass_ms(SOON_MS + 50)
    assert await gateway.take_sweep("gw-2", ttl_ms=SOON_MS)
    assert not await gateway.take_sweep("gw-1", ttl_ms=SOON_MS)


async def ends(gateway: GatewayWire, *requests: str) -> dict[str, FinishReason | None]:
    """How each has ended, None: it has not."""
    states = {request: await gateway.request_state(request) for request in requests}
    return {request: state.finish for request, state in states.items() if state is not None}


async def test_control_stream_of_a_dead_engine_goes(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await engine.beat_engine(replace(INFO, process="e-1"), ttl_ms=SHORT_MS)
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await gateway.cancel(MODEL, "r1", mark())
    await wires.pass_ms(2 * SHORT_MS)
    await engine.reap(MODEL)
    assert await engine.read_control("e-1", "0-0", block_ms=1) == []


OLD = "engine-1-0a1b2c3d"
NEW = "engine-1-99998888"
STRANGERS = (
    *("engine-2-0a1b2c3d", "engine-1-0a1b2c3d-00001111", "engine-1-not-hexx", "engine-1.x"),
    "engine-1-0a1b2c3d4",
)
"""Other names, however alike: one that ends like a nonce, one that has none."""


async def test_a_successor_of_the_same_name_need_not_wait_for_the_lease(wires: Wires) -> None:
    gateway, old, new = await wires.gateway(), await wires.engine(), await wires.engine()
    await old.beat_engine(replace(INFO, process=OLD), ttl_ms=LEASE_MS)
    await new.beat_engine(replace(INFO, process=NEW, state="loading"), ttl_ms=LEASE_MS)
    await gateway.submit(record("r1"), max_queued=9)
    await gateway.submit(record("r2", slot=11), max_queued=9)
    assert set(await claim(old, OLD)) == {"r1", "r2"}
    assert await claim(new, NEW) == {}

    assert await new.supersede(MODEL, NEW) == 2

    taken = await claim(new, NEW)
    assert {name: (each.attempt, each.crashes) for name, each in taken.items()} == {
        "r1": (2, 1),
        "r2": (2, 1),
    }
    assert [info.process for info in await gateway.engines(MODEL)] == [NEW]
    assert await new.supersede(MODEL, NEW) == 0
    # one that does live after all changes nothing any more
    renewed = await old.renew(MODEL, OLD, {"r1": 1, "r2": 1}, lease_ms=LEASE_MS)
    assert set(renewed.lost) == {"r1", "r2"}
    assert not await finish(old, "r1", name=OLD)
    assert await finish(new, "r1", attempt=2, name=NEW)


async def test_a_successor_leaves_other_names_and_models_alone(wires: Wires) -> None:
    gateway, other, new = await wires.gateway(), await wires.engine(), await wires.engine()
    for name in STRANGERS:
        await other.beat_engine(replace(INFO, process=name), ttl_ms=LEASE_MS)
        await gateway.submit(record(name), max_queued=9)
        assert set(await claim(other, name)) == {name}
    await other.beat_engine(replace(INFO, process=OLD, model="another"), ttl_ms=LEASE_MS)
    await new.beat_engine(replace(INFO, process=NEW), ttl_ms=LEASE_MS)

    assert await new.supersede(MODEL, NEW) == 0

    assert await claim(new, NEW) == {}
    listed = {info.process for info in await gateway.engines(MODEL)}
    assert listed == {*STRANGERS, NEW}
    assert [info.process for info in await gateway.engines("another")] == [OLD]
    for name in STRANGERS:
        assert not (await other.renew(MODEL, name, {name: 1}, lease_ms=LEASE_MS)).lost


async def test_only_a_booted_process_supersedes(wires: Wires) -> None:
    engine = await wires.engine()
    with pytest.raises(RecordRejected, match="hex digits"):
        await engine.supersede(MODEL, "engine-1")


async def test_a_drain_reaches_the_process_it_is_meant_for(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert not await gateway.drain_engine(OLD, grace_ms=5)
    await engine.beat_engine(replace(INFO, process=OLD), ttl_ms=LEASE_MS)
    assert await gateway.drain_engine(OLD, grace_ms=1500)
    ((_, control),) = await engine.read_control(OLD, "0-0", block_ms=10)
    assert control is not None
    assert control.WhichOneof("kind") == "drain"
    assert control.drain.grace_ms == 1500
    assert not await gateway.drain_engine(NEW, grace_ms=5)
