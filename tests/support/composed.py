"""A stack that ``docker compose up`` has brought up from a clone, for tests that talk to it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from containers.daemon import Daemon
from containers.images import ARGUMENTS, BUILD_S, revision_of
from containers.wheels import wheel_folder
from support.served import ServedStack

UP_S: Final = 300.0
WITHIN_S: Final = 60.0
COMPOSED: Final = "composed"
"""Tag of the images that compose builds for tests."""
COLLECTOR: Final = "http://otel-collector:4317"
"""Where all stacks of tests send traces and metrics, as docs/guides/compose.md says."""
BUILT: Final = {"secrets": "cli", "engine": "engine", "gateway": "gateway"}
"""Services whose images are ours, and the image of each."""


@dataclass(frozen=True, slots=True)
class ComposedStack:
    """One project of compose. Its services are named as in ``docker-compose.yml``."""

    daemon: Daemon
    tree: Path
    """The clone."""
    folder: Path
    """Of the tests: what they add to the files of the clone, and what they note."""
    project: str
    http_port: int
    grpc_port: int
    engine_port: int
    """Where the tests publish the engine's health and metrics."""
    prometheus_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def compose(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """Runs ``docker compose``; returns its standard output. Fails with both outputs."""
        files = ("--file", "docker-compose.yml", "--file", str(self.folder / "tests.yml"))
        return self.daemon.docker(
            *("compose", "--project-name", self.project, *files, *arguments),
            timeout_s=timeout_s,
            environ=self._environ,
            cwd=self.tree,
        )

    @property
    def _environ(self) -> dict[str, str]:
        return {
            "HEADRACE_HTTP_PORT": str(self.http_port),
            "HEADRACE_GRPC_PORT": str(self.grpc_port),
            "HEADRACE_PROMETHEUS_PORT": str(self.prometheus_port),
            "HEADRACE_OTLP_ENDPOINT": COLLECTOR,
            "HEADRACE_REVISION": revision_of(self.tree),
        }

    def up(self, *, build: bool = False) -> float:
        """Brings everything up and waits until it is healthy. The seconds that took."""
        began = time.monotonic()
        how = ("--build",) if build else ("--no-build", "--pull", "never")
        self.compose("up", *how, "--wait", timeout_s=BUILD_S if build else UP_S)
        return time.monotonic() - began

    def down(self, *more: str) -> None:
        """Ends the containers; volumes stay unless ``--volumes`` is among ``more``."""
        self.compose("--profile", "*", "down", "--timeout", "60", *more)

    def cli(self, *arguments: str) -> str:
        """What ``headrace`` prints beside the stack."""
        return self.compose("run", "--rm", "--no-TTY", "cli", *arguments)

    def inspect(self, service: str) -> dict[str, Any]:
        """All that the container engine knows of a service's container."""
        container = self.compose("ps", "--all", "--quiet", service).strip()
        found: dict[str, Any] = json.loads(self.daemon.docker("inspect", container))[0]
        return found

    def pid(self, service: str) -> int:
        """Of the process in the container, as this machine counts. Fails where it does not run: of
        none there is 0, which would be the caller's own group to who sends a signal.
        """
        pid: int = self.inspect(service)["State"]["Pid"]
        assert pid > 1, f"{service} does not run"
        return pid

    def wait_healthy(self, service: str, *, other_than: int | None = None) -> int:
        """Waits for a healthy process, of another pid than ``other_than``. Its pid."""
        end = time.monotonic() + WITHIN_S
        while True:
            state = self.inspect(service)["State"]
            healthy = state.get("Health", {}).get("Status") == "healthy"
            if healthy and state["Running"] and state["Pid"] != other_than:
                return state["Pid"]
            assert time.monotonic() < end, state
            time.sleep(0.2)

    def described(self, key: str) -> ServedStack:
        """The same for tests of a served stack: where its API is, and its processes."""
        notes = self.folder / "state/run"
        notes.mkdir(parents=True, exist_ok=True)
        ports = {"engine": self.engine_port, "gateway": self.http_port}
        for service, port in ports.items():
            note = {"http_port": port, "pid": self.pid(service)}
            (notes / f"{service}.ready.json").write_text(json.dumps(note))
        return ServedStack(
            urls=(self.url,),
            key=key,
            grpc_ports=(self.grpc_port,),
            model="SmolLM2-135M-Instruct",
            redis_url="redis://unpublished",
            state_dir=notes.parent,
            pid=os.getpid(),
            output=self.folder / "none",
        )


def composed(
    daemon: Daemon, tree: Path, folder: Path, environ: Mapping[str, Mapping[str, str]]
) -> ComposedStack:
    """Describes a project of its own on free ports; ``environ`` is added to services' own."""
    ports = free_ports(4)
    offline = {
        "network": "none",
        "additional_contexts": {"wheels": str(wheel_folder())},
        "args": ARGUMENTS,
    }
    # Under names of their own: compose labels what it builds.
    services: dict[str, Any] = {
        service: {"image": f"headrace-{name}:{COMPOSED}", "build": offline}
        for service, name in BUILT.items()
    }
    services["engine"]["ports"] = [f"127.0.0.1:{ports[2]}:9100"]
    override: dict[str, Any] = {"services": services}
    for service, added in environ.items():
        override["services"].setdefault(service, {})["environment"] = dict(added)
    (folder / "tests.yml").write_text(json.dumps(override))
    return ComposedStack(daemon, tree, folder, f"headrace-test-{os.getpid()}", *ports)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing uses now."""
    lines = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found: list[int] = [line.getsockname()[1] for line in lines]
    for line in lines:
        line.close()
    return found
