"""The programs that images run beside ours: the health check, and what makes compose's secrets."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest
from containers.cache import ROOT

HEALTH: Final = ROOT / "docker/health.py"
SECRETS: Final = ROOT / "docker/make_secrets.py"


def checked(port: int) -> int:
    """The exit code of the health check, run as HEALTHCHECK runs it."""
    return subprocess.run(
        [sys.executable, "-I", "-S", HEALTH, str(port)], stderr=subprocess.DEVNULL, check=False
    ).returncode


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}", False),
        (b"HTTP/1.1 2000 Odd\r\n\r\n", False),
        (b"", False),
    ],
)
def test_a_service_is_healthy_when_it_says_that_it_is_ready(answer: bytes, healthy: bool) -> None:
    asked: list[bytes] = []

    def serve() -> None:
        line, _ = server.accept()
        with line:
            asked.append(line.recv(1000))
            line.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        assert (checked(server.getsockname()[1]) == 0) is healthy
        thread.join()
    assert asked[0].startswith(b"GET /health/ready ")


def test_a_service_that_is_not_there_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert checked(port) != 0


def made(folder: Path) -> dict[str, str]:
    """Every secret after one more start, by file."""
    places = folder / "server", folder / "keys"
    for place in places:
        place.mkdir(exist_ok=True)
    subprocess.run([sys.executable, "-I", SECRETS, *places], check=True)
    files = [file for place in places for file in sorted(place.iterdir())]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o640}
    return {file.name: file.read_text() for file in files}


def test_secrets_are_made_once_and_differ(tmp_path: Path) -> None:
    first = made(tmp_path)
    assert set(first) == {"users.acl", "gateway_password", "engine_password", "pepper"}
    assert len({*first.values()}) == 4
    assert all(len(text) == 64 for name, text in first.items() if name != "users.acl")
    assert made(tmp_path) == first
    (tmp_path / "another").mkdir()
    assert not {*made(tmp_path / "another").values()} & {*first.values()}


def test_the_access_list_holds_hashes_only(tmp_path: Path) -> None:
    secrets = made(tmp_path)
    for user in ("gateway", "engine"):
        password = secrets[f"{user}_password"]
        assert password not in secrets["users.acl"]
        digest = hashlib.sha256(password.encode()).hexdigest()
        assert f"user {user} on #{digest} " in secrets["users.acl"]
