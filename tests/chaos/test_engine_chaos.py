"""What happens to a stream when processes die, stand still, or lose their server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import LogEntry
from headrace_transport.options import WireOptions
from headrace_transport.replies import as_int, as_list
from headrace_transport.server import Server
from support.faulty_engine import BREAK, POISON
from support.held import make_record
from support.process import Process
from support.redis import RedisServer
from support.wire_client import WireClient, wire_client

pytestmark = pytest.mark.slow

PROMPT = (10, 20, 30, 40, 50)
SLOW = ("--echo-step-ms", "20")
"""For what dies on the way: far from its end, also where the test hears of a token late."""
Start = Callable[..., Process]


def echoed(attempt: int, first: int, end: int) -> list[int]:
    """What the echo executor decides in an attempt."""
    return [PROMPT[index % len(PROMPT)] + attempt for index in range(first, end)]


def switched_at(tokens: list[int]) -> int:
    """Where the second attempt began; everything before is the first's, everything after its own."""
    first = echoed(1, 0, len(tokens))
    switch = next(i for i, (have, old) in enumerate(zip(tokens, first, strict=True)) if have != old)
    assert tokens[switch:] == echoed(2, switch, len(tokens))
    return switch


@asynccontextmanager
async def streaming(server: RedisServer, *, tokens: int, heard: int) -> AsyncGenerator[WireClient]:
    """A client of a request that runs, in slot 1, of which so many tokens have come."""
    async with wire_client(server.url) as client:
        await client.submit(make_record(prompt=PROMPT, max_new_tokens=tokens, slot=1))
        await client.until_tokens(1, heard)
        yield client


async def logged(client: WireClient, request: str) -> list[int]:
    """Tokens of choice 0 in the resume log."""
    entries = await client.wire.read_log(request)
    return [token for _, entry in entries for token in entry.tokens]


@pytest.mark.case("BR-29")
async def test_a_killed_engine_is_continued_at_the_next_token(
    own_server: RedisServer, start: Start
) -> None:
    first = start(*SLOW)
    assert first.ready
    async with streaming(own_server, tokens=400, heard=60) as client:
        first.kill()
        delivered = len(client.out.tokens[1])
        second = start()
        out = await client.until_finished(1)
        state = await client.settled("r1")

        assert len(out.tokens[1]) == 400
        assert switched_at(out.tokens[1]) >= delivered
        assert out.finishes[1] is FinishReason.LENGTH
        assert state.usage is not None
        assert state.usage.completion_tokens == 400
        assert await logged(client, "r1") == out.tokens[1]
    assert second.exit_code is None


async def test_a_restarted_engine_of_a_sole_name_waits_for_no_lease(
    own_server: RedisServer, start: Start
) -> None:
    alone = ("--lease-ms", "600000", "--stall-s", "600", "--name", "engine", "--sole-name", "true")
    first = start(*alone, *SLOW)
    assert first.ready
    async with streaming(own_server, tokens=400, heard=60) as client:
        first.kill()
        delivered = len(client.out.tokens[1])
        start(*alone)
        out = await client.until_finished(1)
        await client.settled("r1")
        assert len(out.tokens[1]) == 400
        assert switched_at(out.tokens[1]) >= delivered
        assert await logged(client, "r1") == out.tokens[1]


@pytest.mark.case("BR-28")
async def test_an_engine_that_wakes_after_its_lease_changes_nothing(
    own_server: RedisServer, start: Start
) -> None:
    first = start()
    assert first.ready
    async with streaming(own_server, tokens=900, heard=60) as client:
        first.signal(signal.SIGSTOP)
        second = start()
        stopped_at = len(client.out.tokens[1])
        await client.until_tokens(1, stopped_at + 50)
        first.signal(signal.SIGCONT)
        out = await client.until_finished(1)
        await client.settled("r1")
        assert len(out.tokens[1]) == 900
        assert switched_at(out.tokens[1]) >= stopped_at
        assert await logged(client, "r1") == out.tokens[1]

        # Both serve on: the one that slept has dropped what it had, and holds nothing.
        second.stop()
        await client.submit(make_record("r2", prompt=PROMPT, max_new_tokens=3, slot=2))
        out = await client.until_finished(2)
        assert out.tokens[2] == echoed(1, 0, 3)
        assert len(out.tokens[1]) == 900


async def test_a_server_that_is_killed_and_comes_back_only_pauses_the_streams(
    own_server: RedisServer, start: Start
) -> None:
    engine = start("--lease-ms", "5000")
    assert engine.ready
    async with streaming(own_server, tokens=500, heard=50) as client:
        own_server.restart(empty=False)
        out = await client.until_finished(1)
        await client.settled("r1")

    assert out.tokens[1] == echoed(1, 0, 500)
    assert engine.exit_code is None


async def test_a_server_that_does_not_answer_for_a_while_costs_no_token(
    own_server: RedisServer, start: Start
) -> None:
    engine = start("--lease-ms", "20000")
    assert engine.ready
    async with streaming(own_server, tokens=1500, heard=50) as client:
        own_server.pause()
        await asyncio.sleep(3)
        assert engine.get("/health/live")[0] == 200
        own_server.resume()
        out = await client.until_finished(1)

    assert out.tokens[1] == echoed(1, 0, 1500)


async def test_a_server_that_turns_read_only_for_a_while_costs_no_token_and_no_flood_of_logs(
    own_server: RedisServer, start: Start
) -> None:
    engine = start("--lease-ms", "20000")
    assert engine.ready
    async with streaming(own_server, tokens=1200, heard=50) as client:
        before = len(engine.log().splitlines())
        await asyncio.to_thread(own_server.command, "REPLICAOF", "127.0.0.1", "1")
        await asyncio.sleep(3)
        assert len(engine.log().splitlines()) - before < 20
        await asyncio.to_thread(own_server.command, "REPLICAOF", "NO", "ONE")
        out = await client.until_finished(1)
        await client.submit(make_record("r2", prompt=PROMPT, max_new_tokens=3, slot=2))
        await client.until_finished(2)

    assert out.tokens[1] == echoed(1, 0, 1200)


@pytest.mark.case("BR-28")
async def test_a_request_that_waits_inside_an_engine_longer_than_its_lease_runs_once(
    own_server: RedisServer, start: Start
) -> None:
    waiting = ("--max-batch", "1", "--max-waiting", "2", "--echo-step-ms", "10")
    busy = start(*waiting, "--lease-ms", "3000")
    assert busy.ready
    async with wire_client(own_server.url) as client:
        for slot in (1, 2, 3):
            record = make_record(f"r{slot}", prompt=PROMPT, max_new_tokens=200, slot=slot)
            await client.submit(record)
        await client.until_tokens(1, 5)
        await client.settled("r3", "running")
        idle = start()
        assert idle.ready
        out = await client.until_finished(1, 2, 3)

    assert [out.tokens[slot] for slot in (1, 2, 3)] == [echoed(1, 0, 200)] * 3
    assert "request.finished" not in idle.log()


async def test_what_an_empty_server_lost_continues_when_it_is_submitted_again(
    own_server: RedisServer, start: Start
) -> None:
    engine = start()
    assert engine.ready
    async with wire_client(own_server.url) as client:
        record = make_record(prompt=PROMPT, max_new_tokens=600, slot=1)
        await client.submit(record)
        await client.until_tokens(1, 50)
        own_server.restart(empty=True)
        await asyncio.to_thread(engine.wait_for_log, "request.let_go")
        delivered = client.out.tokens[1]
        assert delivered == echoed(1, 0, len(delivered))

        # As a gateway does: the same id, with what it has handed out, at a new attempt.
        record.attempt = 1
        record.slot = 2
        resume = LogEntry(
            version=WIRE_VERSION,
            attempt=1,
            choices=[0],
            firsts=[0],
            counts=[len(delivered)],
            tokens=delivered,
        )
        async with wire_client(own_server.url, "gw2") as fresh:
            record.gateway = "gw2"
            fresh.known[2] = delivered
            await fresh.wire.submit(record, max_queued=100, resume=resume)
            out = await fresh.until_finished(2)
    assert out.tokens[2] == delivered + echoed(2, len(delivered), 600)


@pytest.mark.case("BR-29")
@pytest.mark.parametrize("io_process", ["off", "on"])
async def test_a_request_that_kills_engines_ends_in_the_dead_letters_and_others_are_served(
    own_server: RedisServer, start: Start, io_process: str
) -> None:
    def faulty() -> Process:
        given = ("--lease-ms", "1000", "--io-process", io_process)
        return start(*given, module="support.faulty_engine")

    fleet = [faulty(), faulty()]
    assert all(engine.ready for engine in fleet)
    async with wire_client(own_server.url) as client:
        await client.submit(make_record("bad", prompt=(POISON,), slot=1))
        served = 0
        async with asyncio.timeout(90):
            while 1 not in client.out.finishes:
                fleet = [faulty() if e.exit_code is not None else e for e in fleet]
                served += 1
                slot = 100 + served
                await client.submit(make_record(f"good{served}", max_new_tokens=2, slot=slot))
                await asyncio.sleep(0.3)
        out = await client.until_finished(*range(101, 101 + served))
        for number in range(1, served + 1):
            await client.settled(f"good{number}")

        assert out.codes[1] == Code.POISONED
        assert {out.finishes[100 + number] for number in range(1, served + 1)} == {
            FinishReason.LENGTH
        }
        redis = Server(own_server.url, password=None, options=WireOptions())
        assert as_int(await redis.command("XLEN", "hr:{m}:dlq")) == 1
        assert as_int(await redis.command("HLEN", "hr:{m}:leases")) == 0
        await redis.close()


@pytest.mark.case("BR-29")
async def test_entries_that_nobody_can_read_are_buried_and_hold_nothing_up(
    own_server: RedisServer, start: Start
) -> None:
    engine = start()
    assert engine.ready
    redis = Server(own_server.url, password=None, options=WireOptions())
    async with wire_client(own_server.url) as client:
        for fields in (("junk", "1"), ("id", "x", "record", "\x00garbage"), ("id", "")):
            await redis.command("XADD", "hr:{m}:q:1:t", "*", *fields)
        await redis.command("ZADD", "hr:{m}:tenants:1", "0", "t")
        await client.submit(make_record(prompt=PROMPT, max_new_tokens=3, slot=1))
        out = await client.until_finished(1)
        assert out.tokens[1] == echoed(1, 0, 3)
        await client.settled("r1")
        letters = as_list(await redis.command("XRANGE", "hr:{m}:dlq", "-", "+"))
        left = as_int(await redis.command("XLEN", "hr:{m}:q:1:t"))
    await redis.close()

    assert len(letters) == 3
    assert left == 0
    assert engine.exit_code is None


async def test_a_broken_device_ends_the_engine_and_its_requests_move_on(
    own_server: RedisServer, start: Start
) -> None:
    first = start(*SLOW, module="support.faulty_engine")
    assert first.ready
    async with wire_client(own_server.url) as client:
        await client.submit(make_record("good", prompt=PROMPT, max_new_tokens=400, slot=1))
        await client.until_tokens(1, 20)
        await client.submit(make_record("bad", prompt=(BREAK,), max_new_tokens=2, slot=2))
        assert await asyncio.to_thread(first.wait) == 1
        assert "the device is lost" in first.log()
        assert 1 not in client.out.finishes
        start()  # an engine whose device is sound runs both
        out = await client.until_finished(1, 2)

    assert len(out.tokens[1]) == 400
    assert out.finishes == {1: FinishReason.LENGTH, 2: FinishReason.LENGTH}
