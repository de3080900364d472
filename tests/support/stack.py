"""The local stack as a person starts it: ``headrace serve`` in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Protocol

import httpx

READY_WITHIN_S = 120.0
STOP_WITHIN_S = 30.0


class StartStack(Protocol):
    """``start_stack`` without its folder: what the fixture ``start`` gives."""

    def __call__(self, *args: str, env: Mapping[str, str] | None = None) -> Stack: ...


class StackFailed(AssertionError):
    """It did not come up; carries what it printed."""


class Stack:
    """One running stack. ``stop`` ends it by its process id."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, output: IO[bytes]) -> None:
        self._process = process
        self._output = output
        self.folder = folder
        """Its state directory."""
        self.urls: list[str] = []
        self.grpc_ports: list[int] = []
        self.redis_url = ""
        self.model = ""

    @property
    def url(self) -> str:
        """Base URL of the first gateway."""
        return self.urls[0]

    @property
    def grpc(self) -> str:
        """Address of the first gateway's gRPC API."""
        return f"127.0.0.1:{self.grpc_ports[0]}"

    @property
    def key(self) -> str:
        """The generated API key."""
        return (self.folder / "api_key").read_text().strip()

    @property
    def redis_password(self) -> str:
        """Password of the embedded server."""
        return (self.folder / "redis_password").read_text().strip()

    def output(self) -> str:
        """What it has printed so far, its children's lines included."""
        return (self.folder / "serve.out").read_text(errors="replace")

    def process_ids(self, name: str) -> int:
        """Process id of ``engine``, ``gateway``, ``gateway-2``, ..."""
        return int(self._ready(name)["pid"])

    def engine_metrics(self) -> dict[str, float]:
        """Every series of the engine, by name and labels as Prometheus writes them."""
        port = self._ready("engine")["http_port"]
        return read_metrics(httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text)

    def gateway_metrics(self) -> dict[str, float]:
        """Every series of the first gateway."""
        return read_metrics(httpx.get(f"{self.url}/metrics", trust_env=False).text)

    def stop(self) -> int:
        """Stops it in order and returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGINT)
            return self._process.wait(STOP_WITHIN_S)
        finally:
            self._output.close()

    def _ready(self, name: str) -> dict[str, int]:
        return json.loads((self.folder / "run" / f"{name}.ready.json").read_text())

    def wait_until_ready(self) -> None:
        """Waits for the line that says so. Raises StackFailed."""
        announced = self.folder / "run" / "stack.json"
        end = time.monotonic() + READY_WITHIN_S
        while "\nready http://" not in self.output() or not announced.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise StackFailed(self.output())
            time.sleep(0.05)
        told = json.loads(announced.read_text())
        self.urls, self.grpc_ports = told["urls"], told["grpc_ports"]
        self.redis_url, self.model = told["redis_url"], told["model"]


def start_stack(folder: Path, *args: str, env: Mapping[str, str] | None = None) -> Stack:
    """Starts a stack on free ports with its state in ``folder``, and waits until it serves."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The file is open as long as the process runs; ``stop`` closes it.
    output = (folder / "serve.out").open("wb")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "headrace_cli", "serve"),
            *("--http-port", "0", "--grpc-port", "0", "--state-dir", str(folder)),
            *args,
        ],
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    )
    stack = Stack(process, folder, output)
    stack.wait_until_ready()
    return stack


def read_metrics(text: str) -> dict[str, float]:
    """Prometheus text as a mapping from ``name{labels}`` to its value."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pairs = (line.rsplit(" ", 1) for line in lines)
    return {name: float(value) for name, value in pairs}
