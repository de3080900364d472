"""Servers behind TLS and servers that sentinels find: reached, and found again after a failover."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from headrace_transport.address import Access, Address
from headrace_transport.channel import Handshake
from headrace_transport.connection import connect_gateway
from headrace_transport.errors import ServerUnsuitable, TransportUnavailable
from headrace_transport.options import WireOptions
from headrace_transport.server import Server
from support.certificates import Certificates, make_certificates
from support.redis import RedisServer, binary_of, free_port, redis_server
from support.waiting import eventually

FAILOVER_S = 40.0
QUICK = WireOptions(op_timeout_s=1.0, connect_timeout_s=1.0)
"""For what is bound to fail."""
PATIENT = WireOptions(op_timeout_s=20.0, connect_timeout_s=20.0)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def tls_before(
    port: int, certificates: Certificates, *, client_needs_one: bool = False
) -> AsyncGenerator[int]:
    """A port that speaks TLS and hands on to another, as the embedded server speaks none."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificates.cert, certificates.key)
    if client_needs_one:
        context.load_verify_locations(certificates.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    running: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
        for each in (copy(reader, behind_writer), copy(behind_reader, writer)):
            task = asyncio.ensure_future(each)
            running.add(task)
            task.add_done_callback(running.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_a_server_is_reached_over_tls_and_proved_by_its_authority(
    certificates: Certificates,
) -> None:
    with redis_server("valkey") as server:
        async with tls_before(server.port, certificates) as port:
            url = f"rediss://localhost:{port}/0"
            access = Access(ca_file=str(certificates.ca))
            wire = await connect_gateway(url, access=access, options=PATIENT)
            await wire.ping()
            await wire.close()
            with pytest.raises(TransportUnavailable, match="certificate verify failed"):
                await connect_gateway(url, options=PATIENT)


async def test_a_server_that_asks_for_a_certificate_gets_ours(certificates: Certificates) -> None:
    ours = Access(
        ca_file=str(certificates.ca),
        cert_file=str(certificates.cert),
        key_file=str(certificates.key),
    )
    with redis_server("valkey") as server:
        async with tls_before(server.port, certificates, client_needs_one=True) as port:
            url = f"rediss://localhost:{port}/0"
            wire = await connect_gateway(url, access=ours, options=PATIENT)
            await wire.ping()
            await wire.close()
            with pytest.raises(TransportUnavailable):
                await connect_gateway(
                    url, access=Access(ca_file=str(certificates.ca)), options=PATIENT
                )


@contextmanager
def sentinel(primary: RedisServer, folder: Path) -> Generator[int]:
    """A sentinel that watches a primary under the name ``hr``; its own password is ``watch``."""
    port = free_port()
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\nrequirepass watch\ndir {folder}\n"
        f"sentinel monitor hr 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds hr 500\n"
        "sentinel failover-timeout hr 3000\n"
    )
    program = binary_of("valkey")
    assert program is not None
    with (folder / "sentinel.log").open("wb") as log:
        process = subprocess.Popen([program, str(config), "--sentinel"], stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)


async def listens(port: int) -> None:
    """Waits until somebody answers there."""
    give_up = time.monotonic() + 20
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.05)
        else:
            writer.close()
            await writer.wait_closed()
            return


async def replica_is_known(port: int) -> None:
    """Waits until the sentinel could fail over."""
    watcher = Server(f"redis://127.0.0.1:{port}/0", password="watch", options=QUICK)
    try:
        async with asyncio.timeout(FAILOVER_S):
            while True:
                with suppress(TransportUnavailable):
                    replicas = await watcher.command("SENTINEL", "REPLICAS", "hr")
                    if isinstance(replicas, list) and replicas and b"ok" in replicas[0]:  # pyright: ignore[reportOperatorIssue]
                        return
                await asyncio.sleep(0.1)
    finally:
        await watcher.close()


async def written(server: Server, value: str) -> None:
    """Writes as soon as it can be written."""
    give_up = time.monotonic() + FAILOVER_S
    while True:
        try:
            await server.command("SET", "hr:probe", value)
        except TransportUnavailable:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.slow
async def test_the_primary_is_found_again_after_a_failover(tmp_path: Path) -> None:
    prompt = ("--repl-diskless-sync-delay", "0")
    with redis_server("valkey", *prompt) as first:
        link = (*prompt, "--replicaof", f"127.0.0.1 {first.port}")
        with redis_server("valkey", *link) as second, sentinel(first, tmp_path) as port:
            await replica_is_known(port)
            server = Server(
                f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/hr/0",
                access=Access(sentinel_password="watch"),
                options=QUICK,
            )
            await server.command("SET", "hr:probe", "before")
            assert b"before" in first.command("GET", "hr:probe")
            first.kill()
            await written(server, "after")
            assert b"after" in second.command("GET", "hr:probe")
            await server.close()


async def test_connections_to_a_primary_that_became_a_replica_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with redis_server("valkey") as first, redis_server("valkey") as second:
        now = first

        async def told(_: Address) -> Handshake:
            plain = Address(now.url, Access(), PATIENT)
            return await handshake(plain)

        handshake = Address.handshake
        monkeypatch.setattr(Address, "handshake", told)
        monkeypatch.setattr(Address, "moves", True)
        server = Server("redis://sentinels-know:1/0", options=PATIENT)
        await server.command("SET", "hr:probe", "before")
        reading = asyncio.ensure_future(
            server.blocking("reader", "BLPOP", "hr:bell", 30, block_ms=30_000)
        )

        async def blocked() -> bool:
            return b"blocked_clients:1" in first.command("INFO", "clients")

        await eventually(blocked)
        now = second
        first.command("CONFIG", "SET", "replica-read-only", "yes")
        first.command("REPLICAOF", "127.0.0.1", str(second.port))
        with pytest.raises(TransportUnavailable, match="read only replica"):
            await server.command("SET", "hr:probe", "lost")
        with pytest.raises(TransportUnavailable):
            await reading
        await server.command("SET", "hr:probe", "after")
        assert b"after" in second.command("GET", "hr:probe")
        await server.close()


async def test_sentinels_that_know_no_such_primary_are_waited_for(tmp_path: Path) -> None:
    with redis_server("valkey") as first, sentinel(first, tmp_path) as port:
        access = Access(sentinel_password="watch")
        await listens(port)
        with pytest.raises(TransportUnavailable, match="'other' is: one that answers knows none"):
            await connect_gateway(
                f"redis+sentinel://127.0.0.1:{port}/other", access=access, options=QUICK
            )


async def test_a_replica_named_outright_is_refused(tmp_path: Path) -> None:
    with (
        redis_server("valkey") as first,
        redis_server("valkey", "--replicaof", f"127.0.0.1 {first.port}") as second,
    ):
        with pytest.raises(ServerUnsuitable, match="replica"):
            await connect_gateway(second.url)
