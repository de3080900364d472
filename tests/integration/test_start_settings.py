"""Both services, as processes, tell a faulty setting in one line and ignore service links."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from support.redis import free_port

SERVICES = ["engine", "gateway"]
PEPPER = "p" * 32
LINKS = (
    ("PORT", "tcp://10.0.0.9:8000"),
    ("SERVICE_HOST", "10.0.0.9"),
    ("SERVICE_PORT", "8000"),
    ("PORT_8000_TCP_ADDR", "10.0.0.9"),
)


def starting(service: str, **settings: str) -> subprocess.Popen[str]:
    """The service as a process with these settings; there is no server behind it."""
    prefix = f"HEADRACE_{service.upper()}_"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    given = {
        "HTTP_PORT": "0",
        "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
        **({"EXECUTOR": "echo"} if service == "engine" else {"GRPC_PORT": "0", "PEPPER": PEPPER}),
        **settings,
    }
    return subprocess.Popen(
        [sys.executable, "-m", f"headrace_{service}"],
        env=kept | {prefix + name: value for name, value in given.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.case("BR-39")
@pytest.mark.case("BR-40")
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("name", "value"),
    [("HTTP_PORT", "abc"), ("HTTP_PORT", "70000"), ("HTTP_PORT", "8k"), ("HTTP_PROT", "8000")],
)
def test_faulty_setting_is_one_line_that_names_the_variable(
    service: str, name: str, value: str
) -> None:
    process = starting(service, **{name: value})
    _, said = process.communicate(timeout=60)
    assert process.returncode > 0
    (line,) = said.strip().splitlines()
    assert f"HEADRACE_{service.upper()}_{name}" in line


@pytest.mark.case("BR-39")
@pytest.mark.parametrize("service", SERVICES)
def test_service_links_of_kubernetes_are_ignored_with_a_warning(service: str) -> None:
    process = starting(service, **dict(LINKS), LOG_FORMAT="json")
    assert process.stderr is not None
    said: list[str] = []
    ignored: set[str] = set()
    try:
        for line in process.stderr:
            said.append(line)
            event = json.loads(line)
            if event["event"] == "setting.service_link_ignored":
                assert event["level"] == "warning"
                ignored.add(event["variable"])
            if len(ignored) == len(LINKS):
                break
    finally:
        process.kill()
        process.communicate(timeout=60)
    prefix = f"HEADRACE_{service.upper()}_"
    assert ignored == {prefix + name for name, _ in LINKS}
    changes = {
        event["name"]: event["place"]
        for event in map(json.loads, said)
        if event["event"] == "setting.changed"
    }
    assert changes["http_port"] == f"{prefix}HTTP_PORT"
    assert PEPPER not in "".join(said)
