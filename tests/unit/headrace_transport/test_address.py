"""URLs of servers, of sentinels and over TLS: what is understood, and what is refused with a remedy."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import pytest
from headrace_kit.process import new_loop
from headrace_transport.address import Access, Address
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import ServerUnsuitable, TransportUnavailable
from headrace_transport.options import WireOptions
from pydantic import BaseModel, SecretStr
from redis import exceptions
from redis.asyncio.connection import SSLConnection


def address(url: str, **access: str) -> Address:
    return Address(url, Access(**access), WireOptions())


async def connection_of(made: Address) -> Any:
    return await made.handshake()


def touched(folder: Path, *names: str) -> dict[str, str]:
    """Paths of empty files."""
    for name in names:
        (folder / name).touch()
    return {name: str(folder / name) for name in names}


async def test_one_server_is_an_address_a_user_and_a_database() -> None:
    made = address("redis://gateway@127.0.0.1:6380/3", password="secret")
    connection = await connection_of(made)
    assert (connection.host, connection.port, connection.db) == ("127.0.0.1", 6380, 3)
    assert (connection.username, connection.password) == ("gateway", "secret")
    assert not made.moves


@pytest.mark.parametrize(
    ("url", "host", "port", "db", "password"),
    [
        ("redis://host", "host", 6379, 0, None),
        ("redis://127.0.0.1/", "127.0.0.1", 6379, 0, None),
        ("redis://[::1]:1/2/", "::1", 1, 2, None),
        ("redis://me:a%23b%3Fc%2Fd@127.0.0.1:1/3", "127.0.0.1", 1, 3, "a#b?c/d"),
    ],
)
async def test_what_an_address_leaves_out_has_a_default(
    url: str, host: str, port: int, db: int, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_transport.address._resolve", _known)
    connection = await connection_of(address(url))
    assert (connection.host, connection.port, int(connection.db)) == (host, port, db)
    assert connection.password == password


async def _known(host: str, port: int) -> None:
    """Every name is."""


async def test_tls_checks_the_server_against_the_authority_given(tmp_path: Path) -> None:
    files = touched(tmp_path, "ca", "cert", "key")
    connection = await connection_of(
        address(
            "rediss://127.0.0.1:1/0",
            ca_file=files["ca"],
            cert_file=files["cert"],
            key_file=files["key"],
        )
    )
    assert isinstance(connection, SSLConnection)
    context: Any = connection.ssl_context
    assert context.check_hostname
    assert (context.ca_certs, context.certfile, context.keyfile) == tuple(files.values())
    assert context.cert_reqs.name == "CERT_REQUIRED"


@pytest.mark.parametrize(
    "url", ["REDISS://h:1/0", " rediss://h:1/0", "rediss://h:1/0\n", "redis\ts://h:1/0"]
)
async def test_no_spelling_of_rediss_does_without_tls(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_transport.address._resolve", _known)
    connection = await connection_of(address(url))
    assert isinstance(connection, SSLConnection)
    assert (connection.host, connection.port) == ("h", 1)


async def test_sentinels_are_several_addresses_and_a_name() -> None:
    made = address("redis+sentinel://me@a:1,[::1]:2/primary/4")
    assert made.moves
    await made.close()
    await address("rediss+sentinel://a:1/primary").close()


@pytest.mark.parametrize(
    "url",
    [
        "http://host",
        "redis+sentinel://a:1",
        "redis+sentinel://a/primary",
        "redis+sentinel://a:0/primary",
        "redis+sentinel://a:1,/primary",
        "redis+sentinel://a:1/primary/x",
        "redis+sentinel://a:1/primary?db=1",
        "redis+sentinel://:pass/word@a:1/1",
        "redis-sentinel://a:1/primary",
        "unix:///run/redis.sock",
        "redis://",
        "redis:///1",
        "redis://host:0",
        "redis://host/x",
        "redis://host/1/2",
        "redis://host?protocol=3",
        "redis://host/0?client_name=x",
        "rediss://host?ssl_cert_reqs=none",
        "redis://:pass#word@host:1",
        "redis://:pass/word@host:1",
        "redis://:pass?word@host:1",
    ],
)
def test_what_names_no_server_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(ServerUnsuitable, match=r"redis_url.*write redis://") as refused:
        address(url)
    assert "pass" not in refused.value.reason


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://host:1/0?db=1", "options behind a ? or #, which are not read: the database"),
        ("redis+sentinel://a:1/primary?db=1", "options behind a ? or #"),
        ("unix:///run/redis.sock", "names a Unix socket"),
        ("valkey://host:1", "does not begin with redis:// or rediss://"),
        ("host:1", "does not begin with redis:// or rediss://"),
        ("redis://", "names no host"),
        ("redis://:1", "names no host and port"),
        ("redis://host/x", "has a path that is no database's number"),
        ("redis+sentinel://me:pass@a:1/primary", "set the redis_password secret"),
    ],
)
def test_what_is_wrong_with_a_url_is_told(url: str, reason: str) -> None:
    with pytest.raises(ServerUnsuitable) as refused:
        address(url)
    assert refused.value.reason.startswith("redis_url ")
    assert reason in refused.value.reason


def test_certificates_that_do_nothing_or_are_not_there_are_refused(tmp_path: Path) -> None:
    there = touched(tmp_path, "there")["there"]
    with pytest.raises(ServerUnsuitable, match=r"redis_ca_file is set.*without TLS"):
        address("redis://h:1/0", ca_file=there)
    with pytest.raises(ServerUnsuitable, match="redis_ca_file: /absent is no file"):
        address("rediss://127.0.0.1:1/0", ca_file="/absent")
    with pytest.raises(ServerUnsuitable, match="only one is set"):
        address("rediss://h:1/0", cert_file=there)


class Told(BaseModel):
    """Settings and secrets of a service in one."""

    redis_ca_file: str | None = "/ca"
    redis_cert_file: str | None = None
    redis_key_file: str | None = None
    redis_password: SecretStr | None = SecretStr("hush")
    redis_sentinel_password: SecretStr | None = None


def test_access_is_what_a_service_was_told_and_does_not_show_passwords() -> None:
    made = Access.of(Told(), Told())
    assert made == Access(password="hush", ca_file="/ca")
    assert "hush" not in repr(made)


async def test_a_name_that_nobody_knows_is_told() -> None:
    with pytest.raises(OSError, match=r"no-such-host\.invalid: "):
        await connection_of(address("redis://no-such-host.invalid:6379/0"))


@pytest.mark.parametrize("name", ["a..b", "a" * 64])
async def test_a_name_that_no_host_can_have_is_told(name: str) -> None:
    with pytest.raises(OSError, match=f"{name} is no host's name: "):
        await connection_of(address(f"redis://{name}:6379/0"))
    with pytest.raises(TransportUnavailable, match=f"{name} is no host's name"):
        await connect_gateway(f"redis://{name}:6379/0")


def test_a_name_that_is_given_up_leaves_no_failure_behind() -> None:
    faults: list[dict[str, Any]] = []

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        options = WireOptions(op_timeout_s=0.0005)
        with pytest.raises(TransportUnavailable):
            await connect_gateway("redis://no-such-host.invalid:6379/0", options=options)
        with pytest.raises(socket.gaierror):  # the same question, answered after the first
            await loop.getaddrinfo("no-such-host.invalid", 6379)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(connect())
        gc.collect()
    assert faults == []


async def test_sentinels_that_do_not_answer_are_named_and_nothing_else() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as first,
        socket.create_server(("127.0.0.1", 0)) as second,
    ):
        nodes = [f"127.0.0.1:{line.getsockname()[1]}" for line in (first, second)]
    made = address(f"redis+sentinel://{','.join(nodes)}/main/0")
    with pytest.raises(exceptions.ConnectionError) as told:
        await made.handshake()
    words = str(told.value)
    assert words.startswith("no sentinel tells where the primary 'main' is: ")
    assert all(node in words for node in nodes)
    assert "redis.asyncio" not in words
    await made.close()
