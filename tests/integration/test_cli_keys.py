"""Keys at the command line: what a person gives that can be no name is told as theirs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.keys import KeyPlace, KeyWish, create, forget, revoke
from headrace_transport.address import Access
from support.redis import RedisServer

BYTES = b"\xff".decode("utf-8", "surrogateescape")
"""An argument whose bytes are no text."""


def create_named(place: KeyPlace, name: str) -> Awaitable[None]:
    return create(place, KeyWish(name, "t", ["inference"], [], 1, None, None, None, None))


def revoke_now(place: KeyPlace, name: str) -> Awaitable[None]:
    return revoke(place, name, after=None)


@pytest.mark.parametrize(
    ("command", "name", "told"),
    [
        (forget, "a b", "a key id must be 1 to 64 characters"),
        (forget, BYTES, "a key id must be 1 to 64 characters"),
        (revoke_now, "a b", "There is no key a b."),
        (revoke_now, BYTES, "is not text."),
        (create_named, BYTES, "is not text."),
        (create_named, "", "a key needs a name"),
    ],
)
async def test_a_name_that_none_can_have_is_no_fault_of_the_servers(
    server: RedisServer,
    command: Callable[[KeyPlace, str], Awaitable[None]],
    name: str,
    told: str,
) -> None:
    with pytest.raises(CommandFailed, match=re.escape(told)) as failed:
        await command(KeyPlace(server.url, Access(), "p" * 32), name)
    assert "cannot be used" not in str(failed.value)
