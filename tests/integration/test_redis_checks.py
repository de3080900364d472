"""Start-up checks: an unsuitable server is refused, with the reason and the remedy."""

from __future__ import annotations

import asyncio

import pytest
from headrace_transport.connection import connect_engine, connect_gateway
from headrace_transport.errors import ServerUnsuitable, TransportUnavailable
from headrace_transport.options import WireOptions
from support.redis import RedisServer, ServerKind, available_kinds, free_port, redis_server

OPTIONS = WireOptions(op_timeout_s=10, connect_timeout_s=10)


async def refusal(url: str, *, password: str | None = None) -> ServerUnsuitable:
    """Why the server is refused, by both ends alike."""
    with pytest.raises(ServerUnsuitable) as by_gateway:
        await connect_gateway(url, password=password, options=OPTIONS)
    with pytest.raises(ServerUnsuitable) as by_engine:
        await connect_engine(url, password=password, options=OPTIONS)
    assert str(by_gateway.value) == str(by_engine.value)
    return by_gateway.value


@pytest.mark.parametrize("kind", available_kinds())
async def test_good_server_passes_without_a_word(kind: ServerKind) -> None:
    with redis_server(kind) as server:
        wire = await connect_gateway(server.url)
        assert wire.warnings == []
        await wire.close()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
async def test_evicting_server_is_refused(own_server: RedisServer, policy: str) -> None:
    own_server.command("CONFIG", "SET", "maxmemory-policy", policy)
    refused = await refusal(own_server.url)
    assert policy in refused.reason
    assert "noeviction" in refused.remedy


async def test_cluster_is_refused() -> None:
    with redis_server("valkey", "--cluster-enabled", "yes") as server:
        refused = await refusal(server.url)
    assert "cluster" in refused.reason
    assert "primary" in refused.remedy


async def test_replica_is_refused(own_server: RedisServer) -> None:
    own_server.command("REPLICAOF", "127.0.0.1", "1")
    refused = await refusal(own_server.url)
    assert "replica" in refused.reason


async def test_server_without_scripting_is_refused(own_server: RedisServer) -> None:
    own_server.command("ACL", "SETUSER", "weak", "on", ">pw", "~*", "+@all", "-@scripting")
    refused = await refusal(own_server.url.replace("//", "//weak:pw@"))
    assert "Lua" in refused.reason
    assert "EVAL" in refused.remedy


async def test_old_server_is_refused() -> None:
    ended = asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = b"# Server\r\nredis_version:6.2.14\r\n"
        while line := await reader.readline():
            if line.strip().upper() == b"INFO":
                writer.write(b"$%d\r\n%s\r\n" % (len(info), info))
            elif line.strip().upper() in (b"CLIENT", b"SELECT"):
                writer.write(b"+OK\r\n")
        writer.close()
        await writer.wait_closed()
        ended.release()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    refused = await refusal(f"redis://127.0.0.1:{port}/0")
    assert "6.2.14" in refused.reason
    assert "7.0" in refused.remedy
    for _ in range(2):
        await ended.acquire()
    server.close()
    await server.wait_closed()


async def test_wrong_password_says_so(own_server: RedisServer) -> None:
    own_server.command("CONFIG", "SET", "requirepass", "right")
    wire = await connect_gateway(own_server.url, password="right")
    await wire.close()
    for password in ("wrong", None):
        refused = await refusal(own_server.url, password=password)
        assert "password" in refused.reason
        assert "wrong" not in str(refused)


async def test_unreachable_server_is_unavailable_not_unsuitable() -> None:
    with pytest.raises(TransportUnavailable):
        await connect_gateway(f"redis://127.0.0.1:{free_port()}/0", options=OPTIONS)


@pytest.mark.parametrize("url", ["http://x", "127.0.0.1:6379", "redis://h:port/0"])
async def test_url_that_names_no_server_is_refused(url: str) -> None:
    refused = await refusal(url)
    assert "redis_url" in refused.reason


async def test_server_that_forgets_is_warned_about(own_server: RedisServer) -> None:
    own_server.command("CONFIG", "SET", "appendonly", "no")
    wire = await connect_engine(own_server.url)
    (warning,) = wire.warnings
    assert "nothing on disk" in warning
    await wire.close()
    own_server.command("CONFIG", "SET", "save", "60 1")
    wire = await connect_engine(own_server.url)
    (warning,) = wire.warnings
    assert "append-only" in warning
    await wire.close()
