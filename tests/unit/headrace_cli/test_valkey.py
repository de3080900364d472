"""The embedded server's configuration and readiness."""

from __future__ import annotations

from pathlib import Path

from headrace_cli import ports, valkey
from headrace_cli.state import StateDir


def test_the_password_is_in_a_file_of_the_owners_and_not_among_arguments(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    path = valkey.write_config(state, 1234)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"requirepass {state.read('redis_password')}\n" in text
    for line in ("bind 127.0.0.1", "port 1234", "appendonly yes", "maxmemory-policy noeviction"):
        assert f"{line}\n" in text


def test_the_binary_is_an_executable_file() -> None:
    assert valkey.binary().stat().st_mode & 0o100


async def test_a_server_that_is_not_there_does_not_answer() -> None:
    url = f"redis://127.0.0.1:{ports.free()[0]}/0"
    assert not await valkey.answers(url, "pw")
