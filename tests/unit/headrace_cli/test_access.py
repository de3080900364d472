"""How a command finds a server, and what it says where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_cli.access import find_server, open_wire
from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir
from headrace_transport.address import Access


def test_the_environment_gives_what_a_gateway_of_that_deployment_has(tmp_path: Path) -> None:
    environ = {"HEADRACE_GATEWAY_REDIS_PASSWORD": "p", "HEADRACE_GATEWAY_PEPPER": "q" * 20}
    url, access, pepper = find_server("redis://there", StateDir(tmp_path), environ)
    assert (url, access.password, pepper) == ("redis://there", "p", "q" * 20)


def test_a_command_without_a_server_says_what_to_start(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No stack runs here") as failed:
        find_server(None, StateDir(tmp_path), {})
    assert failed.value.hint == (
        "Start one with `headrace serve`, or set HEADRACE_GATEWAY_REDIS_URL."
    )


async def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(CommandFailed, match=r"The server redis://127\.0\.0\.1:1/0 cannot be used"):
        async with open_wire("redis://127.0.0.1:1/0", Access()):
            pass


@pytest.mark.parametrize("password", ["secret", "sec/ret", "sec@ret", "sec#ret", "sec?ret"])
async def test_a_password_within_an_address_is_not_repeated(password: str) -> None:
    with pytest.raises(CommandFailed, match=r"The server redis://\*\*\*@127\.0\.0\.1:1 ") as failed:
        async with open_wire(f"redis://user:{password}@127.0.0.1:1", Access()):
            pass
    assert "sec" not in str(failed.value)
    assert "ret" not in str(failed.value)
