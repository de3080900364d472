"""Submitting, claiming, renewing and finishing: the same over every transport."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import INLINE_RECORD_BYTES
from headrace_contracts.pb.queue_pb2 import Usage
from headrace_transport.errors import (
    ConcurrencyExceeded,
    QueueFull,
    RecordRejected,
    RequestConflict,
)
from support.redis import RedisServer
from support.wires import (
    GATEWAY,
    LEASE_MS,
    MODEL,
    OPTIONS,
    SHORT_MS,
    SOON_MS,
    Wires,
    claim,
    entry,
    finish,
    mark,
    opened,
    record,
)


async def test_submitted_record_is_claimed_as_it_was_sent(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    sent = record("r1", prompt=range(50), n=2, slot=7)
    assert (await gateway.submit(sent, max_queued=4)).depth == 1

    claimed = (await claim(engine))["r1"]

    assert claimed.record == sent
    assert (claimed.attempt, claimed.crashes, claimed.alone) == (1, 0, False)
    assert [list(tokens) for tokens in claimed.delivered] == [[], []]
    assert not claimed.ended
    assert await gateway.queue_depth(MODEL) == 0


async def test_large_record_travels_by_reference(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    sent = record("big", prompt=[100_000] * INLINE_RECORD_BYTES)
    await gateway.submit(sent, max_queued=4)
    assert (await claim(engine))["big"].record == sent


async def test_same_id_is_queued_once_while_it_lives(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=4)
    assert (await gateway.submit(record("r1"), max_queued=4)).depth == 1

    assert set(await claim(engine)) == {"r1"}
    await gateway.submit(record("r1"), max_queued=4)

    assert await claim(engine, "e-2") == {}


async def test_id_of_a_finished_request_is_refused(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=4)
    await claim(engine)
    assert await finish(engine, "r1")
    with pytest.raises(RequestConflict, match="r1"):
        await gateway.submit(record("r1"), max_queued=4)


async def test_full_queue_says_depth_and_limit(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(2):
        await gateway.submit(record(f"r{i}"), max_queued=2)
    with pytest.raises(QueueFull) as refused:
        await gateway.submit(record("r2"), max_queued=2)
    assert (refused.value.depth, refused.value.limit) == (2, 2)
    # the same id again is no new work, so it is not refused
    assert (await gateway.submit(record("r1"), max_queued=2)).depth == 2

    await claim(engine, credit=1)
    assert (await gateway.submit(record("r2"), max_queued=2)).depth == 2


async def test_key_has_at_most_its_concurrency_until_a_request_ends(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9, max_concurrency=2)
    await gateway.submit(record("r2"), max_queued=9, max_concurrency=2)
    await claim(engine, credit=1)
    with pytest.raises(ConcurrencyExceeded) as refused:
        await gateway.submit(record("r3"), max_queued=9, max_concurrency=2)
    assert (refused.value.running, refused.value.limit) == (2, 2)
    await gateway.submit(record("other", key_id="key2"), max_queued=9, max_concurrency=1)

    assert await finish(engine, "r1")
    await gateway.submit(record("r3"), max_queued=9, max_concurrency=2)
    await gateway.cancel(MODEL, "r2", mark())
    await gateway.submit(record("r4"), max_queued=9, max_concurrency=2)


async def test_a_place_among_a_keys_requests_lapses_where_nobody_gives_it_back(
    transport_server: RedisServer | None,
) -> None:
    options = replace(OPTIONS, reservation_ms=SOON_MS, state_ttl_ms=60 * SOON_MS)
    async with opened(transport_server, options) as wires:
        gateway = await wires.gateway()
        await gateway.submit(record("r1"), max_queued=9, max_concurrency=1)
        with pytest.raises(ConcurrencyExceeded):
            await gateway.submit(record("r2"), max_queued=9, max_concurrency=1)
        await wires.pass_ms(SOON_MS + 1)
        # with a deadline: as long as its state can be read after it
        await gateway.submit(record("r2", deadline_ms=1), max_queued=9, max_concurrency=1)
        await wires.pass_ms(SOON_MS + 1)
        with pytest.raises(ConcurrencyExceeded) as refused:
            await gateway.submit(record("r3"), max_queued=9, max_concurrency=1)
        assert refused.value.running == 1
        # and a shorter one after it takes nothing from it
        await gateway.submit(record("r3"), max_queued=9, max_concurrency=2)
        await wires.pass_ms(SOON_MS + 1)
        with pytest.raises(ConcurrencyExceeded) as refused:
            await gateway.submit(record("r4"), max_queued=9, max_concurrency=1)
        assert refused.value.running == 1


async def test_a_request_that_is_known_to_have_ended_counts_no_more(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9, max_concurrency=1)
    await claim(engine, credit=1)
    with pytest.raises(ConcurrencyExceeded):
        await gateway.submit(record("r2"), max_queued=9, max_concurrency=1, over=["gone"])
    await gateway.submit(record("r2"), max_queued=9, max_concurrency=1, over=["r1", "gone"])
    with pytest.raises(ConcurrencyExceeded):
        await gateway.submit(record("r3"), max_queued=9, max_concurrency=1, over=["r1"])
    assert await finish(engine, "r1")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "../x"),
        ("id", "a b"),
        ("id", "x" * 65),
        ("id", "a\r\nb"),
        ("id", "a\n"),
        ("tenant", "{t}"),
        ("tenant", "*"),
        ("gateway", "é"),
        ("key_id", "k%s"),
        ("model", "m{x}"),
        ("version", 2),
        ("n", 0),
        ("n", 129),
        ("band", 4),
        ("slot", (1 << 32) - 1),
    ],
)
async def test_what_may_not_enter_a_key_is_refused(
    wires: Wires, field: str, value: str | int
) -> None:
    gateway = await wires.gateway()
    bad = record("r1", n=2)
    setattr(bad, field, value)
    with pytest.raises(RecordRejected):
        await gateway.submit(bad, max_queued=4)
    assert await gateway.queue_depth(MODEL) == 0


async def test_claim_takes_no_more_than_its_credit(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(5):
        await gateway.submit(record(f"r{i}", tenant=f"t{i % 2}", band=i % 3), max_queued=9)
    assert await claim(engine, credit=0) == {}
    assert len(await claim(engine, credit=3)) == 3
    assert len(await claim(engine, credit=3)) == 2
    assert await claim(engine, credit=3) == {}


async def test_urgent_bands_go_first(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for band in (3, 1, 0, 2):
        await gateway.submit(record(f"b{band}", band=band), max_queued=9)
    order = [next(iter(await claim(engine, credit=1))) for _ in range(4)]
    assert order == ["b0", "b1", "b2", "b3"]


async def test_one_tenant_is_served_in_order(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    for i in range(6):
        await gateway.submit(record(f"r{i}"), max_queued=9)
    assert list(await claim(engine, credit=4)) == ["r0", "r1", "r2", "r3"]
    assert list(await claim(engine, credit=4)) == ["r4", "r5"]


async def test_two_engines_never_get_the_same_request(wires: Wires) -> None:
    gateway = await wires.gateway()
    engines = [await wires.engine() for _ in range(3)]
    for i in range(60):
        await gateway.submit(record(f"r{i}", tenant=f"t{i % 5}"), max_queued=99)
    seen: list[str] = []

    async def work(number: int) -> None:
        while got := await claim(engines[number], f"e-{number}", credit=4):
            seen.extend(got)

    async with asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(work(number))
    assert sorted(seen) == sorted(f"r{i}" for i in range(60))


async def test_renewed_lease_is_kept_and_a_lapsed_one_is_taken_over(wires: Wires) -> None:
    gateway, engine, other = await wires.gateway(), await wires.engine(), await wires.engine()
    await gateway.submit(record("kept"), max_queued=9)
    await gateway.submit(record("lapsed"), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    renewed = await engine.renew(MODEL, "e-1", {"kept": 1}, lease_ms=LEASE_MS)
    assert (list(renewed.lost), dict(renewed.cancelled)) == ([], {})
    await wires.pass_ms(2 * SHORT_MS)

    taken = await claim(other, "e-2")

    assert set(taken) == {"lapsed"}
    assert (taken["lapsed"].attempt, taken["lapsed"].crashes) == (2, 1)
    attempts = {"kept": 1, "lapsed": 1, "unknown": 1}
    renewed = await engine.renew(MODEL, "e-1", attempts, lease_ms=LEASE_MS)
    assert sorted(renewed.lost) == ["lapsed", "unknown"]


async def test_lease_that_lapsed_while_nobody_looked_can_be_renewed(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine, lease_ms=SHORT_MS)
    await wires.pass_ms(2 * SHORT_MS)
    assert not (await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)).lost
    assert await claim(engine, "e-2") == {}


async def test_released_request_goes_first_without_counting_a_crash(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("begun"), max_queued=9)
    await claim(engine)
    await gateway.submit(record("new", band=0), max_queued=9)

    await engine.release(MODEL, "e-1", {"begun": 1, "not-ours": 3})

    assert await gateway.queue_depth(MODEL) == 2
    state = await gateway.request_state("begun")
    assert state is not None
    assert state.status == "queued"
    taken = await claim(engine, "e-2")
    assert list(taken) == ["begun", "new"]
    assert (taken["begun"].attempt, taken["begun"].crashes) == (2, 0)


async def test_attempt_starts_above_what_the_gateway_has_seen(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1", attempt=4), max_queued=9)
    assert (await claim(engine))["r1"].attempt == 5


async def test_state_is_told_through_a_requests_life(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    assert await gateway.request_state("r1") is None
    sent = record("r1", n=2)
    sent.edge = b"\xff\x00edge"
    await gateway.submit(sent, max_queued=9)
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.model, state.tenant) == ("queued", MODEL, "acme")
    assert (state.key_id, state.n, state.attempt, state.prompt_tokens) == ("key1", 2, 0, 3)
    assert (state.finish, state.usage, state.gateway) == (None, None, GATEWAY)
    assert state.edge == b"\xff\x00edge"
    assert state.created_ms > 0

    await claim(engine)
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.attempt) == ("running", 1)

    assert await finish(engine, "r1", generated=5)
    state = await gateway.request_state("r1")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.STOP)
    assert state.usage == Usage(prompt_tokens=3, completion_tokens=5)


async def test_finish_twice_is_finish_once(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    assert await finish(engine, "r1", last=entry([1]))
    assert await finish(engine, "r1", last=entry([1]))
    assert len(await gateway.read_log("r1")) == 1
    assert not await finish(engine, "r1", name="e-2")
    assert not await finish(engine, "r1", attempt=2)
    assert not await finish(engine, "unknown")


async def test_state_and_log_of_a_finished_request_end_with_their_time(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await engine.append_log("e-1", "r1", 1, entry([5, 6]))
    await finish(engine, "r1")
    assert len(await gateway.read_log("r1")) == 1
    await wires.pass_ms(2 * SOON_MS + 100)
    assert await gateway.read_log("r1") == []
    assert await gateway.request_state("r1") is not None
    await wires.pass_ms(3 * SOON_MS)
    assert await gateway.request_state("r1") is None
    await gateway.submit(record("r1"), max_queued=9)


async def test_queued_request_past_its_deadline_counts_no_more_and_ends_at_the_claim(
    wires: Wires,
) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("probe"), max_queued=9)
    state = await gateway.request_state("probe")
    assert state is not None
    late = record("late", deadline_ms=state.created_ms + SOON_MS)
    await gateway.submit(late, max_queued=9)
    assert await gateway.queue_depth(MODEL) == 2
    await wires.pass_ms(SOON_MS + 50)
    assert await gateway.queue_depth(MODEL) == 1

    assert set(await claim(engine)) == {"probe"}

    state = await gateway.request_state("late")
    assert state is not None
    assert (state.status, state.finish) == ("finished", FinishReason.DEADLINE)


async def test_what_a_flush_lost_can_be_submitted_again(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await gateway.submit(record("r2"), max_queued=9)
    await wires.flush()

    assert list((await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)).lost) == ["r1"]
    assert not (await engine.append_log("e-1", "r1", 1, entry([1]))).ours
    assert not await finish(engine, "r1")
    assert await claim(engine) == {}
    await gateway.submit(record("r1", attempt=1), max_queued=9, resume=entry([4, 5]))
    await gateway.submit(record("r2"), max_queued=9)

    taken = await claim(engine)

    assert taken["r1"].attempt == 2
    assert list(taken["r1"].delivered[0]) == [4, 5]
    assert taken["r2"].attempt == 1


async def test_lease_of_an_earlier_attempt_is_not_renewed_by_its_own_engine(wires: Wires) -> None:
    gateway, engine = await wires.gateway(), await wires.engine()
    await gateway.submit(record("r1"), max_queued=9)
    await claim(engine)
    await engine.release(MODEL, "e-1", {"r1": 1})
    assert (await claim(engine))["r1"].attempt == 2
    renewed = await engine.renew(MODEL, "e-1", {"r1": 1}, lease_ms=LEASE_MS)
    assert list(renewed.lost) == ["r1"]
    assert not (await engine.renew(MODEL, "e-1", {"r1": 2}, lease_ms=LEASE_MS)).lost


async def test_a_name_stays_bound_to_the_first_value_until_it_ends_or_is_replaced(
    wires: Wires,
) -> None:
    gateway = await wires.gateway()

    async def bind(value: str, *, ttl_ms: int = LEASE_MS, instead: str = "") -> str:
        return await gateway.bind_once("acme", "k", "d0", value, ttl_ms=ttl_ms, instead=instead)

    assert await bind("a", ttl_ms=SOON_MS) == "a"
    assert await bind("b", instead="c") == "a"
    assert await gateway.bind_once("acme", "k", "d1", "b", ttl_ms=LEASE_MS) == "b"
    assert await bind("a") == "a"  # longer now
    await wires.pass_ms(SOON_MS + 50)
    assert await bind("b", instead="a", ttl_ms=SHORT_MS) == "b"
    await wires.pass_ms(2 * SHORT_MS)
    assert await bind("c") == "c"
    assert await bind("b", ttl_ms=0) == "c"
    assert await bind("c", ttl_ms=0) == ""
    assert await bind("b") == "b"
