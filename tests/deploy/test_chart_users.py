"""The users of the bundled server, on a real one: what they may, what they must not, and that all of
Headrace works with no more than that."""

from __future__ import annotations

import base64
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass

import pytest
from headrace_contracts import keys
from headrace_transport.errors import AccessDenied, TransportUnavailable
from headrace_transport.options import WireOptions
from headrace_transport.server import Server
from support.chart import one, render
from support.redis import binary_of, free_port

OPTIONS = WireOptions(op_timeout_s=20, connect_timeout_s=20)


@dataclass(frozen=True, slots=True)
class Bundled:
    """The chart's server, with its own configuration and users."""

    port: int
    passwords: dict[str, str]

    def url(self, user: str) -> str:
        """Where a user connects."""
        return f"redis://{user}@127.0.0.1:{self.port}/0"

    def server(self, user: str) -> Server:
        """A connection as a user."""
        return Server(self.url(user), password=self.passwords.get(user, "any"), options=OPTIONS)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Generator[Bundled]:
    folder = tmp_path_factory.mktemp("valkey")
    docs = render()
    secret = one(docs, "Secret", "rel-headrace-valkey")["data"]
    data = {key: base64.b64decode(value).decode() for key, value in secret.items()}
    (folder / "users.acl").write_text(data["users.acl"])
    port = free_port()
    config: str = one(docs, "ConfigMap", "rel-headrace-valkey")["data"]["valkey.conf"]
    for old, new in (
        ("bind * -::*", "bind 127.0.0.1"),
        ("port 6379", f"port {port}"),
        ("/etc/valkey/acl", str(folder)),
        ("dir /data", f"dir {folder}"),
    ):
        assert old in config
        config = config.replace(old, new)
    (folder / "valkey.conf").write_text(config)
    program = binary_of("valkey")
    assert program is not None
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, folder / "valkey.conf"], stdout=log, stderr=log)
    passwords = {
        name.removesuffix("-password"): value
        for name, value in data.items()
        if name.endswith("-password")
    }
    try:
        yield Bundled(port, passwords)
    finally:
        process.terminate()
        process.wait(timeout=20)


async def ready(bundled: Bundled) -> None:
    """Waits until the server answers."""
    server = bundled.server("gateway")
    give_up = time.monotonic() + 20
    while True:
        try:
            await server.command("PING")
        except TransportUnavailable:
            assert time.monotonic() < give_up
        else:
            await server.close()
            return


FORBIDDEN: dict[str, list[tuple[str | int, ...]]] = {
    "gateway": [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("SET", "x", "1"),
    ],
    "engine": [("GET", "hr:key:x"), ("SMEMBERS", "hr:keys"), ("FLUSHALL",), ("ACL", "LIST")],
    "autoscaler": [
        ("GET", "hr:{m}:card"),
        ("DEL", "hr:{m}:queued"),
        ("ZADD", "hr:{m}:queued", 1, "x"),
    ],
    "probe": [("GET", "hr:key:x"), ("INFO",), ("EVAL", "return 1", 0)],
}


@pytest.mark.parametrize("user", FORBIDDEN)
async def test_nobody_may_more_than_he_must(bundled: Bundled, user: str) -> None:
    server = bundled.server(user)
    await ready(bundled)
    for command in FORBIDDEN[user]:
        with pytest.raises(AccessDenied):
            await server.command(*command)
    await server.close()


COUNT = """
local known = {zset = 'zcard', set = 'scard', list = 'llen', hash = 'hlen', none = 'llen'}
return redis.call(known[redis.call('type', KEYS[1]).ok], KEYS[1])
"""
"""As KEDA's scaler of lists asks for a length, whatever it is the length of."""


async def test_the_autoscaler_counts_as_keda_does(bundled: Bundled) -> None:
    await ready(bundled)
    models = {"m": {"artifact": "pkg://a/b", "name": "org/m", "keda": {"enabled": True}}}
    docs = render({"models": models})
    triggers = one(docs, "ScaledObject", "rel-headrace-m")["spec"]["triggers"]
    lists = [each["metadata"]["listName"] for each in triggers]
    assert set(lists) == {keys.queued("org/m"), keys.expiries("org/m")}
    gateway, server = bundled.server("gateway"), bundled.server("autoscaler")
    # What its client says first, and how the scaler asks whether anybody is there.
    hello = ("HELLO", 3, "AUTH", "autoscaler", bundled.passwords["autoscaler"])
    for command in (hello, ("CLIENT", "SETINFO", "LIB-NAME", "go-redis"), ("SELECT", 0), ("PING",)):
        await server.command(*command)
    for key in lists:
        assert await server.command("EVAL", COUNT, 1, key) == 0
        await gateway.command("ZADD", key, 1, "a", 2, "b", 3, "c")
        assert await server.command("EVAL", COUNT, 1, key) == 3
    await gateway.command("DEL", *lists)
    await gateway.close()
    await server.close()


async def test_without_a_password_there_is_nothing(bundled: Bundled) -> None:
    await ready(bundled)
    for url, password in (
        (f"redis://127.0.0.1:{bundled.port}/0", None),
        (bundled.url("gateway"), "x"),
    ):
        server = Server(url, password=password, options=OPTIONS)
        with pytest.raises(AccessDenied):
            await server.command("PING")
        await server.close()
