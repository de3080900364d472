"""Gateway processes as they run in production, for integration tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from headrace_gateway.auth.keys import KeyStore
from headrace_kit.clock import SystemClock
from headrace_transport.connection import connect_gateway

PEPPER = "a pepper for tests only"
START_S = 90.0
"""How long a process may take to be ready on a machine that is busy with other tests."""


class GatewayProgram:
    """``python -m headrace_gateway`` on free ports."""

    def __init__(self, process: Process, folder: Path) -> None:
        self.process = process
        self._folder = folder
        self.http_port = 0
        self.grpc_port = 0

    @property
    def url(self) -> str:
        """Where the HTTP API is."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self._folder / "gateway.log").read_text()

    async def ready(self) -> None:
        """Waits for the ready file, and reads it."""
        path = self._folder / "ready.json"
        async with asyncio.timeout(START_S):
            while not (text := _text_of(path)):
                assert self.process.returncode is None, self.log
                await asyncio.sleep(0.02)
        found = json.loads(text)
        assert found["pid"] == self.process.pid
        self.http_port, self.grpc_port = found["http_port"], found["grpc_port"]

    def terminate(self) -> None:
        """SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def wait(self) -> int:
        """Its exit code."""
        async with asyncio.timeout(START_S):
            return await self.process.wait()


async def make_key(url: str) -> str:
    """A key for the default tenant, as these gateways know keys."""
    wire = await connect_gateway(url)
    try:
        token, _ = await KeyStore(wire, PEPPER.encode(), SystemClock()).create(name="test")
        return token
    finally:
        await wire.close()


def _text_of(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@asynccontextmanager
async def gateway_program(
    redis_url: str, folder: Path, settings: Mapping[str, object] | None = None
) -> AsyncGenerator[GatewayProgram]:
    """One gateway process, not waited for; killed at the end if it still runs."""
    os.makedirs(folder, exist_ok=True)
    given = {
        "redis_url": redis_url,
        "http_port": 0,
        "grpc_port": 0,
        "ready_file": folder / "ready.json",
        "key_cache_s": 0,
        **(settings or {}),
    }
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        **{f"HEADRACE_GATEWAY_{name.upper()}": str(value) for name, value in given.items()},
        "HEADRACE_GATEWAY_PEPPER": PEPPER,
    }
    with (folder / "gateway.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace_gateway"),
            env=environment,
            stdout=log,
            stderr=log,
        )
    program = GatewayProgram(process, folder)
    try:
        yield program
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
