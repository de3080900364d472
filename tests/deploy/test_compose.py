"""docker compose, from a clean clone: the stack as a person brings it up, and what it survives."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from chartgen.alerts import ALERTS
from chartgen.dashboards import BOARDS
from containers.cache import ROOT
from containers.daemon import Daemon
from containers.images import Images
from openai import OpenAI
from support.api import Api, Body, told
from support.composed import BUILT, COMPOSED, UP_S, ComposedStack, composed
from support.idle import check_idle
from support.kubernetes import until
from support.served import STACK_VARIABLE, ServedStack
from support.timings import Timings

STORY: Final[Body] = {
    "prompt": "Once upon a time, in a land far away, there lived a fox who",
    "max_tokens": 60,
    "temperature": 0,
    "stream_options": {"include_usage": True},
}
BEFORE: Final = 8
"""Events that have arrived when something is done to the stack."""
SUITE: Final = (
    *("tests/e2e/test_sdk.py", "tests/e2e/test_cases_streaming.py"),
    *("tests/e2e/test_cases_requests.py", "tests/e2e/test_cases_grpc.py"),
    *("tests/e2e/test_cases_metrics.py", "tests/e2e/test_sdk_resume.py"),
    *(f"tests/e2e/test_examples.py::test_{name}" for name in ("curl", "openai_sdk", "grpc")),
    "tests/e2e/test_examples.py::test_cancel_and_resume",
)
"""End-to-end tests that ask of a stack only what its API says."""
AGAIN: Final = ("--reruns", "1", "--reruns-delay", "2")
"""As `make test-e2e` has them."""
NEEDS_A_SUPERVISOR: Final = "not killed_before_the_first_token and not at_another_gateway"

LABEL: Final = "com.docker.compose.project="

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def project(
    containers: Daemon,
    images: Images,
    clone: Path,
    tmp_path_factory: pytest.TempPathFactory,
    timings: Timings,
) -> Generator[ComposedStack]:
    """The stack of the clone, up and healthy; gone with its volumes afterwards."""
    gateway = {
        "HEADRACE_GATEWAY_DRAIN_S": "2",
        "HEADRACE_GATEWAY_SCALE_FROM_ZERO": "true",
        "HEADRACE_GATEWAY_LOST_ENGINE_S": "300",
    }
    environ = {"gateway": gateway}
    made = composed(containers, clone, tmp_path_factory.mktemp("compose"), environ)
    try:
        observe(made, "otel-collector")
        timings("docker compose up --build --wait, first time", made.up(build=True))
        for name in BUILT.values():
            # Compose builds what `docker build` does.
            ours, composed_one = getattr(images, name), f"headrace-{name}:{COMPOSED}"
            assert layers(containers, ours) == layers(containers, composed_one)
        yield made
    finally:
        print(made.compose("logs", "--no-color", "--tail", "40"))
        made.down("--volumes")
        containers.docker("rmi", *(f"headrace-{name}:{COMPOSED}" for name in BUILT.values()))
    left = containers.docker("ps", "--all", "--quiet", "--filter", f"label={LABEL}{made.project}")
    assert not left


def observe(project: ComposedStack, service: str) -> None:
    """Starts a service of the profile ``observability`` alone."""
    profile = ("--profile", "observability")
    up = ("up", "--no-build", "--pull", "never", "--no-deps", "--wait", service)
    project.compose(*profile, *up, timeout_s=UP_S)


def layers(containers: Daemon, image: str) -> list[str]:
    return containers.docker("inspect", "--format={{json .RootFS.Layers}}", image).split(",")


@pytest.fixture(scope="module")
def key(project: ComposedStack) -> str:
    """As the guide says to make one."""
    made = project.cli("keys", "create", "--name", "tests").strip()
    assert made.startswith("hr_")
    return made


@pytest.fixture
def stack(project: ComposedStack, key: str) -> ServedStack:
    return project.described(key)


@pytest.fixture
def api(stack: ServedStack) -> Generator[Api]:
    with Api(stack, timeout_s=120) as made:
        yield made


def disturbed(api: Api, disturb: Callable[[], None]) -> bytes:
    """The bytes of a stream during which something happens once."""
    asked = {"model": api.stack.model, **STORY, "stream": True}
    raw, done = b"", False
    with api.client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200, answer.read()
        for piece in answer.iter_raw():
            raw += piece
            if not done and raw.count(b"data: ") >= BEFORE:
                disturb()
                done = True
    assert done
    return raw


def check_whole(raw: bytes, expected: str) -> None:
    stream = told(raw)
    assert stream.error is None
    assert stream.texts == {0: expected}
    assert stream.reasons == [(0, "length")]
    assert stream.dones == 1


def test_a_person_s_first_chat_is_answered(project: ComposedStack, key: str) -> None:
    with OpenAI(base_url=f"{project.url}/v1", api_key=key, max_retries=0) as client:
        (model,) = client.models.list()
        stream = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "Name three rivers."}],
            temperature=0,
            max_tokens=16,
            stream=True,
        )
        text = "".join(part.choices[0].delta.content or "" for part in stream)
    assert len(text.split()) > 3


def test_processes_may_do_and_write_nothing_that_they_need_not(project: ComposedStack) -> None:
    for service in ("valkey", "engine", "gateway"):
        found = project.inspect(service)
        assert found["HostConfig"]["ReadonlyRootfs"]
        assert found["HostConfig"]["CapDrop"] == ["ALL"]
        assert found["HostConfig"]["Memory"] > 0
        status = Path(f"/proc/{found['State']['Pid']}/status").read_text()
        facts = dict(line.split(":", 1) for line in status.splitlines())
        assert int(facts["CapEff"], 16) == 0
        assert facts["NoNewPrivs"].strip() == "1"
        assert "0" not in facts["Uid"].split()


def test_only_what_makes_or_checks_keys_sees_the_pepper(project: ComposedStack) -> None:
    mounted = {
        service: {mount["Destination"] for mount in project.inspect(service)["Mounts"]}
        for service in ("valkey", "engine", "gateway")
    }
    keys = "/var/lib/headrace/keys"
    assert [service for service, places in mounted.items() if keys in places] == ["gateway"]


def test_the_server_keeps_what_it_has_and_evicts_nothing(project: ComposedStack) -> None:
    def probe(*words: str) -> str:
        return project.compose(
            *("exec", "--no-TTY", "valkey", "valkey-cli", "--user", "probe", "--pass", "probe"),
            *("--no-auth-warning", *words),
        )

    assert probe("ping").strip() == "PONG"
    assert "NOPERM" in probe("config", "get", "appendonly")
    options = (project.tree / "docker/valkey/valkey.conf").read_text().splitlines()
    assert {"appendonly yes", "maxmemory-policy noeviction"} <= set(options)


def test_the_end_to_end_suite_passes_against_it(
    project: ComposedStack, stack: ServedStack, timings: Timings
) -> None:
    description = project.folder / "stack.json"
    description.write_text(stack.to_json())
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITE, "-q", "-k", NEEDS_A_SUPERVISOR, *AGAIN],
        cwd=ROOT,
        env=os.environ | {STACK_VARIABLE: str(description)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-3000:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    timings(f"end-to-end suite: {done.stdout.splitlines()[-1]}", time.monotonic() - began)


@pytest.fixture
def prometheus(project: ComposedStack) -> Generator[httpx.Client]:
    """The one of the profile ``observability``, while the test runs."""
    observe(project, "prometheus")
    with httpx.Client(base_url=f"http://127.0.0.1:{project.prometheus_port}/api/v1") as client:
        yield client
    project.compose(
        "--profile", "observability", "rm", "--stop", "--force", "--volumes", "prometheus"
    )


def test_prometheus_asks_the_services_and_knows_the_boards_and_alerts(
    prometheus: httpx.Client, api: Api, timings: Timings
) -> None:
    def asked(path: str, **query: str) -> Any:
        found = prometheus.get(path, params=query)
        assert found.status_code == 200, (query, found.text)
        return found.json()["data"]

    def value(expression: str) -> float:
        result = asked("/query", query=expression)["result"]
        return float(result[0]["value"][1]) if result else 0.0

    def rules() -> list[dict[str, Any]]:
        return [rule for group in asked("/rules")["groups"] for rule in group["rules"]]

    began = time.monotonic()
    until(
        lambda: (
            {each["labels"]["job"]: each["health"] for each in asked("/targets")["activeTargets"]}
            == {"headrace-gateway": "up", "headrace-engine": "up"}
        ),
        "a service is not asked, or does not answer",
    )
    timings("compose: Prometheus asks both services", time.monotonic() - began)
    # Two rounds with a request in between, so that there is a rate.
    seen = value("sum(headrace_gateway_completion_tokens_total)")
    api.stream_completion(STORY)
    until(
        lambda: value("sum(headrace_gateway_completion_tokens_total)") > seen,
        "the tokens of a request are not counted",
    )
    until(lambda: {rule["health"] for rule in rules()} == {"ok"}, "alerts are not evaluated")
    assert {rule["name"] for rule in rules()} == {alert.name for alert in ALERTS}
    assert not [rule["name"] for rule in rules() if rule["state"] == "firing"]

    def silent() -> list[str]:
        """Panels that show nothing although there is something of all that they ask for."""
        return [
            title
            for board in BOARDS
            for title, expression in board.expressions
            if not asked("/query", query=filled(expression))["result"]
            and all(
                value(f'count({{__name__=~"{name}"}})')
                for name in re.findall(r"headrace_\w+", expression)
            )
        ]

    until(lambda: not silent(), lambda: f"panels are empty: {silent()}")


def test_traces_and_metrics_of_both_services_reach_the_collector(
    project: ComposedStack, api: Api
) -> None:
    api.stream_completion(STORY)
    spans = (f"text_completion {api.stack.model}", "process", "queue", "prefill", "decode")
    expected = {
        # as a span's line says it: texts of metrics have these words too
        **{span: rf" Name +: {span}\b" for span in spans},
        **{
            each: rf"[ (]{each}\b"
            for each in (
                *("headrace_gateway_requests_started_total", "headrace_engine_passes_total"),
                *("headrace-gateway", "headrace-engine"),
            )
        },
    }

    def missing() -> set[str]:
        told = project.compose("--profile", "observability", "logs", "--no-color", "otel-collector")
        return {each for each, line in expected.items() if not re.search(line, told)}

    until(lambda: not missing(), lambda: f"the collector does not tell of {missing()}")


def filled(expression: str) -> str:
    """With Grafana's variables filled in."""
    return expression.replace("$__rate_interval", "1m").replace("$namespace", ".*")


@pytest.mark.parametrize(("service", "what"), [("engine", "engine"), ("valkey", "server")])
def test_a_stream_outlives_a_kill(
    project: ComposedStack, api: Api, timings: Timings, service: str, what: str
) -> None:
    expected = api.stream_completion(STORY).texts[0]
    victim = project.pid(service)
    began = time.monotonic()
    raw = disturbed(api, lambda: os.kill(victim, signal.SIGKILL))
    check_whole(raw, expected)
    timings(f"a stream of 60 tokens whose {what} is killed", time.monotonic() - began)
    project.wait_healthy(service, other_than=victim)


def test_a_stream_waits_for_a_paused_server(project: ComposedStack, api: Api) -> None:
    expected = api.stream_completion(STORY).texts[0]

    def pause() -> None:
        project.compose("pause", "valkey")
        time.sleep(3)
        project.compose("unpause", "valkey")

    check_whole(disturbed(api, pause), expected)


def test_afterwards_every_block_is_at_hand(project: ComposedStack, key: str) -> None:
    project.wait_healthy("engine")
    check_idle(project.described(key))


def test_down_and_up_keep_queued_work_and_keys(
    project: ComposedStack, api: Api, key: str, timings: Timings
) -> None:
    expected = api.stream_completion(STORY).texts[0]
    asked = {"model": api.stack.model, **STORY, "stream": True}
    try:
        project.compose("stop", "engine")
        with api.client.stream("POST", "/v1/completions", json=asked) as answer:
            assert answer.status_code == 200
            request = answer.headers["x-headrace-request-id"]
            project.down()
            left = answer.read()
        assert json.loads(left.split(b"data: ")[1].split(b"\n")[0])["error"]["code"] == "draining"
    finally:
        took = project.up()
    timings("docker compose up --wait, after down", took)
    with httpx.Client(base_url=project.url, headers=api.stack.headers, timeout=120) as client:
        events = client.get(f"/v1/requests/{request}/events", params={"after": ""})
    assert events.status_code == 200, events.text
    check_whole(events.content, expected)
