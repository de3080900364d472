"""Start-up checks: a server that would lose work or cannot run us is refused, with the remedy."""

from __future__ import annotations

from typing import Final

from headrace_transport.errors import (
    AccessDenied,
    CommandFailed,
    ServerUnsuitable,
    TransportUnavailable,
)
from headrace_transport.replies import as_bytes, as_list, as_text
from headrace_transport.server import Server

OLDEST: Final = (7, 0)
"""Redis 7.0, and Valkey 7.2, which reports itself as Redis 7.2."""


async def check_server(server: Server) -> list[str]:
    """Refuses an unsuitable server; returns warnings about a suitable one.

    Raises ``ServerUnsuitable`` (reason and remedy), ``TransportUnavailable``.
    """
    try:
        info = _info(as_bytes(await server.command("INFO")).decode())
    except AccessDenied as error:
        raise ServerUnsuitable(
            "the server refuses our user or password",
            "set the redis_password secret, and give the user all commands and all keys",
        ) from error
    _check_version(info.get("redis_version", "unknown"))
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1":
        raise ServerUnsuitable(
            "the server runs in cluster mode, which is not supported yet",
            "use a single primary, with Sentinel if it must fail over",
        )
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ServerUnsuitable(
            f"maxmemory-policy is {policy}, which may evict queued work and API keys",
            "set maxmemory-policy to noeviction",
        )
    await _check_scripting(server)
    if info.get("role") == "slave":
        if server.moves:
            raise TransportUnavailable("the sentinels still name a server that is a replica")
        raise ServerUnsuitable(
            "the server is a replica and cannot be written to", "point redis_url at its primary"
        )
    return await _warnings(server, info)


def _info(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        raise ServerUnsuitable(
            f"the server's version is {version}",
            "use Redis 7.0 or newer, or Valkey 7.2 or newer",
        )


async def _check_scripting(server: Server) -> None:
    try:
        await server.command("EVAL", "return redis.call('TIME')[1]", 0)
    except (CommandFailed, AccessDenied) as error:
        raise ServerUnsuitable(
            f"the server does not run Lua scripts ({error})",
            "allow EVAL and EVALSHA for this user, and do not put a proxy that blocks them between",
        ) from error


async def _warnings(server: Server, info: dict[str, str]) -> list[str]:
    if info.get("aof_enabled") == "1":
        return []
    try:
        saves = as_text(as_list(await server.command("CONFIG", "GET", "save"))[1])
    except (CommandFailed, AccessDenied, IndexError):
        return ["cannot tell whether the server keeps its data: CONFIG GET is not allowed"]
    if saves:
        return ["append-only persistence is off: API keys made since the last snapshot may be lost"]
    return ["the server keeps nothing on disk: API keys and model cards are lost when it restarts"]
