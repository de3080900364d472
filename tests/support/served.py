"""A stack served by ``headrace serve``, as people run it, for tests that talk to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx

START_S: Final = 100.0
STOP_S: Final = 30.0
STACK_VARIABLE: Final = "HEADRACE_TEST_STACK"
"""Names a file that describes a stack which runs already, for tests to use instead of their own."""
IO_VARIABLE: Final = "HEADRACE_TEST_IO_PROCESS"
"""``on``: engines of the stacks that tests start have their io in a process of its own."""


@dataclass(frozen=True, slots=True)
class ServedStack:
    """A running stack. Its methods are for tests of any client."""

    urls: tuple[str, ...]
    """Base URLs of the gateways, without ``/v1``."""
    key: str
    """A key with every scope."""
    grpc_ports: tuple[int, ...]
    model: str
    redis_url: str
    state_dir: Path
    pid: int
    """Of the supervisor."""
    output: Path
    """What ``headrace serve`` has printed so far."""

    @property
    def url(self) -> str:
        return self.urls[0]

    @property
    def grpc_port(self) -> int:
        return self.grpc_ports[0]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    @property
    def redis_password(self) -> str:
        return (self.state_dir / "redis_password").read_text().strip()

    @property
    def environ(self) -> dict[str, str]:
        """For child processes: where the API is, and nothing else of Headrace's."""
        return clean_environ() | {
            "HEADRACE_URL": self.url,
            "HEADRACE_API_KEY": self.key,
            "HEADRACE_GRPC": f"127.0.0.1:{self.grpc_port}",
            "HEADRACE_STATE_DIR": str(self.state_dir),
        }

    def to_json(self) -> str:
        """For ``STACK_VARIABLE``."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ServedStack:
        """What ``to_json`` has written."""
        told = json.loads(text)
        for name in ("urls", "grpc_ports"):
            told[name] = tuple(told[name])
        for name in ("state_dir", "output"):
            told[name] = Path(told[name])
        return cls(**told)

    def client(self) -> httpx.Client:
        """A plain HTTP client with the key."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=100.0, trust_env=False)

    def pids(self, name: str) -> list[int]:
        """Processes of the stack whose command line holds ``name``, e.g. ``headrace_engine``."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    line = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                except OSError:
                    continue
                if name in line and parent == self.pid:
                    found.append(int(entry.name))
        return found


class StartStack(Protocol):
    """Starts one more stack; the fixture that gives it ends it."""

    def __call__(
        self, *arguments: str, environ: Mapping[str, str] | None = None
    ) -> ServedStack: ...


def clean_environ() -> dict[str, str]:
    """This process's environment without what would set up Headrace."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}


def headrace(*arguments: str) -> list[str]:
    """The command line of the CLI in this environment."""
    return [sys.executable, "-m", "headrace_cli", *arguments]


@contextmanager
def served_stack(
    folder: Path, arguments: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Generator[ServedStack]:
    """Runs ``headrace serve`` on free ports in ``folder`` until the block ends.

    ``environ`` is added to a clean environment. Fails with the output when it does not get ready.
    """
    state_dir = folder / "state"
    output = folder / "serve.txt"
    command = headrace(
        "serve", *arguments, "--http-port=0", "--grpc-port=0", f"--state-dir={state_dir}"
    )
    with output.open("w") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=clean_environ() | _wanted() | dict(environ or {}),
            start_new_session=True,
        )
    try:
        _wait_ready(process, output)
        yield _describe(process.pid, state_dir, output)
    finally:
        stop(process)


def _wanted() -> dict[str, str]:
    wish = os.environ.get(IO_VARIABLE)
    return {"HEADRACE_ENGINE_IO_PROCESS": wish} if wish else {}


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, as ``docker stop`` does; returns the exit code. Kills it when it hangs."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def _wait_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        text = output.read_text()
        if any(line.startswith("ready http://") for line in text.splitlines()):
            return
        if process.poll() is not None:
            raise AssertionError(f"serve ended with code {process.returncode}:\n{text}")
        time.sleep(0.05)
    raise AssertionError(f"not ready within {START_S:g} s:\n{output.read_text()}")


def _describe(pid: int, state_dir: Path, output: Path) -> ServedStack:
    # Imported here: tests that never serve need no CLI.
    from headrace_cli.state import StateDir

    state = StateDir(state_dir)
    running = state.running()
    assert running is not None
    key = state.read("api_key")
    assert key is not None
    return ServedStack(
        urls=running.urls,
        key=key,
        grpc_ports=running.grpc_ports,
        model=running.model,
        redis_url=running.redis_url,
        state_dir=state_dir,
        pid=pid,
        output=output,
    )
