"""The engine as a process, on a real server, with the echo executor."""

from __future__ import annotations

import signal
import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_contracts.pb import codes_pb2
from headrace_contracts.pb.queue_pb2 import CancelMark, MediaItem
from headrace_transport.options import WireOptions
from headrace_transport.replies import as_int, as_list, as_text
from headrace_transport.server import Server
from support.held import make_record
from support.otlp import otlp_receiver
from support.process import Process, engine_process
from support.redis import RedisServer, redis_server
from support.waiting import eventually, wait_until
from support.wire_client import wire_client


@pytest.fixture
def engine(own_server: RedisServer, tmp_path: Path) -> Generator[Process]:
    """A small engine that takes a little time for a pass."""
    process = engine_process(tmp_path / "engine", own_server.url, "--echo-step-ms", "2")
    try:
        yield process
    finally:
        process.stop()


async def test_a_request_comes_back_as_its_prompt(own_server: RedisServer, engine: Process) -> None:
    assert engine.ready["pid"] == engine.pid
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(5, 6, 7), max_new_tokens=7, slot=3))
        out = await client.until_finished(3)
        state = await client.settled("r1")

    assert out.tokens == {3: [5, 6, 7, 5, 6, 7, 5]}
    assert out.finishes == {3: FinishReason.LENGTH}
    assert state.finish is FinishReason.LENGTH
    assert state.usage is not None
    assert state.usage.completion_tokens == 7


async def test_a_stop_token_a_cancel_a_refusal_and_choices_each_end_once(
    own_server: RedisServer, engine: Process
) -> None:
    stop = make_record("stop", prompt=(5, 6), max_new_tokens=50, slot=1)
    stop.sampling.stop_token_ids.append(9)
    many = make_record("many", n=3, prompt=(8,), max_new_tokens=4, slot=10)
    media = make_record("media", slot=20)
    media.media.add(kind=MediaItem.KIND_IMAGE)
    assert engine.ready
    async with wire_client(own_server.url) as client:
        for record in (stop, many, media):
            await client.submit(record)
        await client.submit(make_record("long", max_new_tokens=4000, slot=30))
        await client.until_tokens(30, 5)
        mark = CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED)
        assert await client.wire.cancel("m", "long", mark)
        out = await client.until_finished(1, 10, 11, 12, 20, 30)
        for request in ("stop", "many", "media", "long"):
            await client.settled(request)

    assert out.tokens[1] == [5, 6, 9]
    assert [out.tokens[slot] for slot in (10, 11, 12)] == [[8] * 4] * 3
    assert out.finishes[1] is FinishReason.STOP
    assert out.finishes[30] is FinishReason.CANCELLED
    assert (out.finishes[20], out.codes[20]) == (
        FinishReason.ERROR,
        Code.UNSUPPORTED_PARAMETER,
    )


async def test_nothing_of_finished_requests_outlives_its_time(
    own_server: RedisServer, engine: Process
) -> None:
    assert engine.ready
    async with wire_client(own_server.url) as client:
        for number in range(1000):
            await client.submit(make_record(f"r{number}", max_new_tokens=3, slot=number + 1))
        await client.until_finished(*range(1, 1001))
        for number in range(1000):
            await client.settled(f"r{number}")
    redis = Server(own_server.url, password=None, options=WireOptions())
    keys = [as_text(key) for key in as_list(await redis.command("KEYS", "hr:*"))]
    forever = {key for key in keys if as_int(await redis.command("PTTL", key)) == -1}
    leases = await redis.command("HLEN", "hr:{m}:leases")
    queued = await redis.command("ZCARD", "hr:{m}:queued")
    marks = await redis.command("HLEN", "hr:{m}:cancel")
    await redis.close()

    requests = {key for key in forever if "{r" in key}
    assert requests == set()
    assert (leases, queued, marks) == (0, 0, 0)
    assert not {key for key in forever if ":q:" in key}


async def test_readiness_follows_the_server_and_liveness_does_not(
    own_server: RedisServer, engine: Process
) -> None:
    assert engine.get("/health/ready")[0] == 200
    own_server.kill()
    status, body = wait_for(engine, "/health/ready", 503)
    assert "does not answer" in body
    assert engine.get("/health/live")[0] == 200

    own_server.restart(empty=True)
    status, body = wait_for(engine, "/health/ready", 200)
    assert status == 200
    async with wire_client(own_server.url) as client:
        await eventually(lambda: client.wire.card("m"))
        await client.submit(make_record(max_new_tokens=2, slot=5))
        await client.until_finished(5)


async def test_metrics_tell_what_happened_in_both_dialects(
    own_server: RedisServer, engine: Process
) -> None:
    assert engine.ready
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(max_new_tokens=6, slot=1))
        await client.until_finished(1)
        await client.settled("r1")

    values = wait_until_idle(engine)  # the server knows it is settled before the engine does
    assert values['headrace_engine_requests_finished_total{reason="length"}'] == 1
    assert values["headrace_engine_requests_claimed_total"] == 1
    assert values["headrace_engine_published_tokens_total"] == 6
    assert values["headrace_engine_request_seconds_count"] == 1
    assert values["headrace_engine_first_token_seconds_count"] == 1
    assert values['headrace_engine_request_seconds_bucket{le="0.01"}'] >= 0
    assert values['headrace_engine_request_seconds_bucket{le="600.0"}'] == 1
    assert values['vllm:num_requests_running{model_name="m"}'] == 0
    assert values['vllm:kv_cache_usage_perc{model_name="m"}'] == 0


async def test_gauges_fall_to_nothing_after_everything_was_cancelled(
    own_server: RedisServer, engine: Process
) -> None:
    assert engine.ready
    slots = range(1, 21)
    async with wire_client(own_server.url) as client:
        for slot in slots:
            await client.submit(make_record(f"r{slot}", max_new_tokens=4000, slot=slot))
        await client.until(lambda out: len(out.tokens) == 20)
        mark = CancelMark(reason=codes_pb2.FINISH_REASON_CANCELLED)
        for slot in slots:
            await client.wire.cancel("m", f"r{slot}", mark)
        await client.until_finished(*slots)
        for slot in slots:
            await client.settled(f"r{slot}")

    values = wait_until_idle(engine)
    assert values["headrace_engine_sequences_waiting"] == 0
    assert values["headrace_engine_cache_usage_ratio"] == 0
    assert values["headrace_engine_requests_held"] == 0
    assert values['headrace_engine_requests_finished_total{reason="cancelled"}'] == 20


async def test_the_schedule_is_pushed_over_otlp(own_server: RedisServer, tmp_path: Path) -> None:
    with otlp_receiver() as receiver:
        process = engine_process(
            tmp_path,
            own_server.url,
            *("--otlp-endpoint", receiver.endpoint, "--otlp-interval-s", "0.2"),
        )
        try:
            assert process.ready
            async with wire_client(own_server.url) as client:
                await client.submit(make_record(max_new_tokens=6, slot=1))
                await client.until_finished(1)
            wait_until_idle(process)
            receiver.wait_for_pushes(len(receiver.metrics) + 2)
        finally:
            process.stop()
        metrics = receiver.newest_metrics()

    assert metrics["headrace_engine_generated_tokens_total"].sum.data_points[0].as_double == 6
    assert "headrace_engine_sequences_running" in metrics
    assert metrics["headrace_engine_request_seconds"].histogram.data_points[0].count == 1


async def test_sigterm_finishes_what_runs_and_hands_back_what_waits(
    own_server: RedisServer, tmp_path: Path
) -> None:
    process = engine_process(
        tmp_path,
        own_server.url,
        *("--echo-step-ms", "20", "--max-batch", "2", "--max-waiting", "2"),
    )
    assert process.ready
    async with wire_client(own_server.url) as client:
        for slot in (1, 2, 3, 4):
            await client.submit(make_record(f"r{slot}", max_new_tokens=90, slot=slot))
        await client.until(lambda out: {1, 2} <= set(out.tokens))
        process.signal(signal.SIGTERM)
        out = await client.until_finished(1, 2)
        assert process.wait() == 0

        assert len(out.tokens[1]) == len(out.tokens[2]) == 90
        assert await client.wire.engines("m") == []
        states = [await client.wire.request_state(f"r{slot}") for slot in (3, 4)]
        assert [state.status for state in states if state is not None] == ["queued", "queued"]


async def test_at_the_end_of_its_grace_an_engine_hands_its_streams_over(
    own_server: RedisServer, tmp_path: Path
) -> None:
    options = ("--echo-step-ms", "10", "--drain-s", "0.3")
    first = engine_process(tmp_path / "first", own_server.url, *options)
    assert first.ready
    async with wire_client(own_server.url) as client:
        await client.submit(make_record(prompt=(5, 6, 7), max_new_tokens=300, slot=1))
        await client.until_tokens(1, 10)
        first.signal(signal.SIGTERM)
        assert first.wait() == 0
        second = engine_process(tmp_path / "second", own_server.url)
        try:
            out = await client.until_finished(1)
        finally:
            second.stop()

    assert out.tokens[1] == [5, 6, 7] * 100


def test_a_second_signal_ends_at_once(own_server: RedisServer, tmp_path: Path) -> None:
    own_server.pause()
    process = engine_process(tmp_path, own_server.url)
    try:
        process.wait_for_log("engine.starting")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
    finally:
        own_server.resume()


def test_sigterm_ends_an_engine_that_waits_for_its_server(tmp_path: Path) -> None:
    process = engine_process(tmp_path, "redis://127.0.0.1:1/0")
    process.wait_for_log("wire.away")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--max-batch", "0"), "--max-batch"),
        (("--batch-tokens", "100"), "batch_tokens"),
        (("--executor", "quantum"), "executor"),
        (("--executor", "cpu", "--model", "/nowhere"), "/nowhere"),
        (("--context-tokens", "9000"), "9000"),
        (("--cache-blocks", "1"), "less than two blocks"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(
    own_server: RedisServer, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    process = engine_process(tmp_path, own_server.url, *arguments)

    assert process.wait(60) == 2
    assert words in process.log()
    assert "Traceback" not in process.log()


def test_a_server_that_evicts_is_refused(tmp_path: Path) -> None:
    with redis_server("valkey", "--maxmemory-policy", "allkeys-lru") as server:
        process = engine_process(tmp_path, server.url)

        assert process.wait(60) == 2
        assert "noeviction" in process.log()


def test_a_port_that_is_taken_is_refused(own_server: RedisServer, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = engine_process(
            tmp_path, own_server.url, "--http-port", str(taken.getsockname()[1])
        )

        assert process.wait(60) == 2
        assert "in use" in process.log()


def samples(engine: Process) -> dict[str, float]:
    """Every sample of /metrics, by name and labels."""
    _, text = engine.get("/metrics")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def wait_until_idle(engine: Process) -> dict[str, float]:
    """Samples once nothing runs or is held any more."""

    def busy() -> float:
        values = samples(engine)
        return values["headrace_engine_sequences_running"] + values["headrace_engine_requests_held"]

    wait_until(lambda: not busy(), lambda: f"{busy():g} are still there")
    return samples(engine)


def wait_for(engine: Process, path: str, status: int) -> tuple[int, str]:
    """The answer, once it has this status."""
    wait_until(
        lambda: engine.get(path)[0] == status,
        lambda: f"{path} does not become {status}:\n{engine.log()}",
    )
    return engine.get(path)
