"""An engine that is told to stop, and counts that agree afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import httpx
import pytest
from headrace_contracts.pb import inference_pb2, inference_pb2_grpc
from support.api import Api, Body, Told, check_error
from support.figures import engine_metrics, gateway_metrics, process_id
from support.idle import check_idle
from support.served import ServedStack, headrace, served_stack
from support.waiting import wait_until

SMALL: Body = {"prompt": "again and again", "max_tokens": 3}
LONG: Body = {"prompt": "again and " * 60, "max_tokens": 100}
"""Two seconds of the engine's time."""
LONGER: Body = {"prompt": "again and " * 200, "max_tokens": 300}
"""Longer than the engine's grace."""
RUNNING = "headrace_engine_sequences_running"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServedStack]:
    """An echo engine that runs four requests at a time, and lets them end for four seconds."""
    environ = {
        "HEADRACE_ENGINE_MAX_BATCH": "4",
        "HEADRACE_ENGINE_MAX_WAITING": "1",
        "HEADRACE_ENGINE_ECHO_STEP_MS": "20",
        "HEADRACE_ENGINE_DRAIN_S": "4",
    }
    folder = tmp_path_factory.mktemp("drain")
    with served_stack(folder, ["--executor=echo", "--quiet"], environ) as served:
        yield served


@pytest.fixture
def api(stack: ServedStack) -> Generator[Api]:
    with Api(stack) as made:
        yield made


until = partial(wait_until, within_s=60.0, every_s=0.05)
"""An engine starts in it."""


def stream(api: Api, threads: ThreadPoolExecutor, body: Body, count: int) -> list[Future[Told]]:
    return [threads.submit(api.stream_completion, body) for _ in range(count)]


def in_time(api: Api, body: Body, deadline_ms: int) -> httpx.Response:
    """Asks with a deadline."""
    return api.client.post(
        "/v1/completions",
        json={"model": api.stack.model, **body},
        headers={"x-headrace-deadline-ms": str(deadline_ms)},
    )


def generate(stack: ServedStack, body: Body, timeout: float | None = None) -> str:
    """The text of an RPC."""
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc_port}") as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        request = inference_pb2.GenerateRequest(
            model=stack.model,
            text=str(body["prompt"]),
            max_tokens=int(str(body["max_tokens"])),
        )
        metadata = (("authorization", f"Bearer {stack.key}"),)
        events = list(stub.Generate(request, timeout=timeout, metadata=metadata))
    return "".join(event.text for event in events)


def cli(stack: ServedStack, *arguments: str) -> str:
    """What a command prints, in the stack's own state."""
    return subprocess.run(
        headrace(*arguments), capture_output=True, text=True, env=stack.environ, check=True
    ).stdout


def restarts(stack: ServedStack) -> list[str]:
    """What the supervisor said of engines that ended."""
    lines = stack.output.read_text().splitlines()
    return [line for line in lines if "engine ended" in line or "engine was killed" in line]


@pytest.mark.slow
@pytest.mark.case("BR-31")
def test_an_engine_that_stops_ends_its_streams_and_hands_back_what_waits(
    stack: ServedStack, api: Api
) -> None:
    text = api.text(LONG)
    pid, before = process_id(stack, "engine"), len(restarts(stack))
    with ThreadPoolExecutor(9) as threads, socket.socket() as idle:
        idle.connect(("127.0.0.1", engine_port(stack)))  # and says nothing
        rpc = threads.submit(generate, stack, LONG)
        streams = stream(api, threads, LONG, 7)
        until(lambda: engine_metrics(stack)[RUNNING] == 4, "nothing runs")
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)
        answer = api.completion(SMALL)
        if answer.status_code != 200:  # nobody takes requests before the next one is up
            check_error(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
        for each in streams:
            told = each.result()
            assert (told.texts, told.dones) == ({0: text}, 1)
        assert rpc.result() == text
    until(lambda: len(restarts(stack)) > before, "it did not end")
    assert "ended with code 0" in restarts(stack)[before]
    until(lambda: api.completion(SMALL).status_code == 200, "no engine is back")
    check_idle(stack)


@pytest.mark.slow
@pytest.mark.case("BR-31")
def test_streams_that_outlast_an_engine_s_grace_go_on_at_its_successor(
    stack: ServedStack, api: Api
) -> None:
    text = api.text(LONGER)
    pid, before = process_id(stack, "engine"), len(restarts(stack))
    with ThreadPoolExecutor(3) as threads:
        streams = stream(api, threads, LONGER, 3)
        until(lambda: engine_metrics(stack)[RUNNING] == 3, "nothing runs")
        os.kill(pid, signal.SIGTERM)
        for each in streams:
            told = each.result()
            assert (told.texts, told.dones) == ({0: text}, 1)
    until(lambda: len(restarts(stack)) > before, "it did not end")
    assert "ended with code 0" in restarts(stack)[before]
    check_idle(stack)


@pytest.mark.slow
def test_top_names_an_engine_and_drain_ends_it(stack: ServedStack, api: Api) -> None:
    shown = cli(stack, "top", "--once")
    (line,) = [line for line in shown.splitlines() if line.startswith("  engine-")]
    process, state = line.split()[:2]
    assert state == "ready"
    before = len(restarts(stack))
    with ThreadPoolExecutor(2) as threads:
        streams = stream(api, threads, LONG, 2)
        until(lambda: engine_metrics(stack)[RUNNING] == 2, "nothing runs")
        told = cli(stack, "drain", "engine-", "--grace", "20", "--wait")
        assert told.splitlines()[-1] == f"{process} has ended"
        assert [each.result().dones for each in streams] == [1] * 2
    until(lambda: len(restarts(stack)) > before, "it did not end")
    assert "ended with code 0" in restarts(stack)[before]
    until(lambda: "ready" in cli(stack, "top", "--once"), "no engine is back")
    assert process not in cli(stack, "top", "--once")
    check_idle(stack)


@pytest.mark.slow
@pytest.mark.case("BR-38")
def test_a_deadline_that_passes_in_the_queue_is_never_started(stack: ServedStack, api: Api) -> None:
    held: Body = {"prompt": "again and " * 500, "max_tokens": 900}  # 18 s, and is left then
    with ThreadPoolExecutor(6) as threads:
        holding = [threads.submit(api.completion, held) for _ in range(5)]
        until(lambda: engine_metrics(stack)["headrace_engine_requests_held"] == 5, "nothing runs")
        before = gateway_metrics(stack)
        claimed = engine_metrics(stack)["headrace_engine_requests_claimed_total"]
        with pytest.raises(grpc.RpcError) as failure:
            generate(stack, SMALL, timeout=1.0)
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        late = in_time(api, SMALL, 1000)
        error = check_error(late, (408, 429, 503, 504))
        assert error["code"] == "deadline_exceeded"
        assert engine_metrics(stack)["headrace_engine_requests_claimed_total"] == claimed
        until(lambda: ended(gateway_metrics(stack)) == ended(before) + 2, "they did not end")
        for each in api.client.get("/v1/requests").json()["data"]:
            api.client.delete(f"/v1/requests/{each['id']}")
        assert all(each.result().status_code != 200 for each in holding)
    check_idle(stack)
    assert engine_metrics(stack)["headrace_engine_requests_claimed_total"] == claimed


@pytest.mark.slow
@pytest.mark.case("BR-32")
def test_totals_agree_over_a_mixed_run_and_a_killed_engine(stack: ServedStack, api: Api) -> None:
    engine_began = engine_metrics(stack)
    began = gateway_metrics(stack)
    bodies: list[Body] = [
        SMALL,
        {**SMALL, "n": 3},
        {**SMALL, "prompt": ["a", "b"]},
        {**LONG, "stop": "and"},
        {**SMALL, "temperature": 9},
    ]
    with ThreadPoolExecutor(6) as threads:
        late = [threads.submit(in_time, api, LONGER, 200) for _ in range(2)]
        statuses = [answer.status_code for answer in threads.map(api.completion, bodies * 3)]
        assert all(each.result().status_code != 200 for each in late)
    assert statuses.count(200) == 12
    assert statuses.count(400) == 3
    with api.client.stream(
        "POST", "/v1/completions", json={"model": stack.model, **LONG, "stream": True}
    ) as left:
        next(left.iter_raw())
    check_idle(stack)
    engine_now = engine_metrics(stack)
    assert total(engine_now, "headrace_engine_requests_claimed_total") == (
        total(engine_now, "headrace_engine_requests_finished_total")
        + total(engine_now, "headrace_engine_requests_let_go_total")
    )
    assert not fallen(engine_began, engine_now)
    with ThreadPoolExecutor(3) as threads:
        streams = stream(api, threads, {**LONGER, "max_tokens": 160}, 3)
        until(lambda: engine_metrics(stack)[RUNNING] == 3, "nothing runs")
        os.kill(process_id(stack, "engine"), signal.SIGKILL)
        assert [each.result().dones for each in streams] == [1] * 3
    check_idle(stack)
    until(lambda: gateway_metrics(stack)["headrace_gateway_requests_open"] == 0, "one stays open")
    ended_now = gateway_metrics(stack)
    assert total(ended_now, "headrace_gateway_requests_started_total") == total(
        ended_now, "headrace_gateway_requests_finished_total"
    )
    assert not fallen(began, ended_now)


def engine_port(stack: ServedStack) -> int:
    """Of its health and metrics."""
    return json.loads((stack.state_dir / "run" / "engine.ready.json").read_text())["http_port"]


def total(metrics: dict[str, float], name: str) -> float:
    """Over all labels."""
    return sum(value for series, value in metrics.items() if series.split("{")[0] == name)


def ended(metrics: dict[str, float]) -> float:
    """Calls that ran out of time; an RPC's client may say so first, with a cancel."""
    return sum(
        value
        for series, value in metrics.items()
        if series.startswith("headrace_gateway_requests_finished_total")
        and ('reason="cancelled"' in series or 'reason="deadline"' in series)
    )


def fallen(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Counters that went down."""
    return [
        series
        for series, value in before.items()
        if series.split("{")[0].endswith(("_total", "_bucket", "_count"))
        and after.get(series, 0.0) < value
    ]
