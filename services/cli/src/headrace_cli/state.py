"""The state directory of the local stack: keys, secrets, the server's data, logs.

Everything in it is for its owner alone: directories 0700, files 0600. ``$HEADRACE_STATE_DIR``
names it, else ``headrace`` under the XDG state home.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from headrace_cli.errors import CommandFailed

MARKER = "headrace-state"
"""A file that only state directories have, so that ``reset`` never empties anything else."""
LOCK_WAIT_S = 0.5
"""Longer than another command holds the lock to see whether it is free."""


@dataclass(frozen=True, slots=True)
class RunningStack:
    """Where the stack that holds the lock can be reached."""

    pid: int
    """Of the supervisor."""
    urls: tuple[str, ...]
    """Base URLs of the gateways."""
    grpc_ports: tuple[int, ...]
    redis_url: str
    model: str
    """The name that requests give."""


class StateDir:
    """One state directory. Created, with right permissions, by ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def locate(cls, given: Path | None, environ: Mapping[str, str]) -> StateDir:
        """Where the state is, without touching it."""
        if given is not None:
            return cls(given.expanduser().absolute())
        if named := environ.get("HEADRACE_STATE_DIR"):
            return cls(Path(named).expanduser().absolute())
        home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", "~")) / ".local/state"
        return cls((Path(home) / "headrace").expanduser().absolute())

    def open(self) -> StateDir:
        """Creates what is missing and mends permissions. Raises CommandFailed."""
        try:
            for folder in (self.path, self.data, self.run, self.logs, self.journals):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                folder.chmod(0o700)
            if not (self.path / MARKER).exists():
                self.write(MARKER, "State of a local Headrace stack. `headrace reset` removes it.")
        except OSError as error:
            raise CommandFailed(
                f"The state directory {self.path} cannot be used: {error.strerror}.",
                hint="Name another one with --state-dir or HEADRACE_STATE_DIR.",
            ) from error
        return self

    @property
    def data(self) -> Path:
        """The embedded server's files."""
        return self.path / "valkey"

    @property
    def run(self) -> Path:
        """Files of the running stack."""
        return self.path / "run"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def journals(self) -> Path:
        """What engines that failed left for `headrace replay`."""
        return self.path / "journals"

    @property
    def key_file(self) -> Path:
        """The API key of the local stack."""
        return self.path / "api_key"

    @property
    def pepper_file(self) -> Path:
        return self.path / "pepper"

    @property
    def redis_password_file(self) -> Path:
        return self.path / "redis_password"

    def write(self, name: str, text: str) -> Path:
        """Replaces a file whole; only the owner can read it."""
        path = self.path / name
        fresh = path.with_name(path.name + ".new")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(text + "\n")
        fresh.replace(path)
        return path

    def read(self, name: str) -> str | None:
        """A file's text without the line's end; None where there is no such file."""
        try:
            return (self.path / name).read_text().removesuffix("\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CommandFailed(f"{self.path / name} cannot be read: {error.strerror}.") from error

    def secret(self, path: Path) -> str:
        """The secret in a file of this directory, made at first use."""
        found = self.read(path.name)
        if found:
            return found
        made = secrets.token_urlsafe(32)
        self.write(path.name, made)
        return made

    @contextmanager
    def lock(self) -> Generator[None]:
        """Held by the one stack of this directory. Raises CommandFailed when it runs."""
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + LOCK_WAIT_S
            while not _try_lock(descriptor):
                if time.monotonic() > end:
                    raise CommandFailed(
                        f"A stack already runs with the state directory {self.path}"
                        f"{_described(self.running())}.",
                        hint="Use it, stop it with Ctrl-C, or name another --state-dir.",
                    )
                time.sleep(LOCK_WAIT_S / 10)
            yield
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether a stack runs."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def announce(self, stack: RunningStack) -> None:
        """Tells other commands where the stack is."""
        self.write("run/stack.json", json.dumps(asdict(stack)))

    def withdraw(self) -> None:
        """The stack is gone."""
        (self.run / "stack.json").unlink(missing_ok=True)

    def running_now(self) -> RunningStack | None:
        """The stack that runs, once it is ready; None without one."""
        return self.running() if self.is_locked() else None

    def running(self) -> RunningStack | None:
        """What the stack announced, or the last one did; None before it is ready."""
        text = self.read("run/stack.json")
        if text is None:
            return None
        fields = cast("dict[str, object]", json.loads(text))
        return RunningStack(
            pid=cast("int", fields["pid"]),
            urls=tuple(cast("list[str]", fields["urls"])),
            grpc_ports=tuple(cast("list[int]", fields["grpc_ports"])),
            redis_url=str(fields["redis_url"]),
            model=str(fields["model"]),
        )

    def remove(self) -> None:
        """Deletes everything. Raises CommandFailed while a stack runs, or for a foreign folder."""
        if not self.path.exists():
            return
        if not (self.path / MARKER).exists():
            raise CommandFailed(
                f"{self.path} is not a state directory of Headrace: nothing was removed."
            )
        with self.lock():
            shutil.rmtree(self.path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _described(stack: RunningStack | None) -> str:
    return "" if stack is None else f" (process {stack.pid}, {', '.join(stack.urls)})"
