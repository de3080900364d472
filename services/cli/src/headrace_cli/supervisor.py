"""Keeps a few child processes alive: starts them in order, restarts, stops in reverse.

Children are in sessions of their own, so that Ctrl-C reaches the supervisor alone and it decides
the order. On Linux they die with it, however it ends (the kernel's parent-death signal).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Final, Protocol, Self

LAST_LINES: Final = 20
"""Lines of a child's output that are told when it fails."""
LOG_BYTES: Final = 32 << 20
"""Size at which a log file is put aside."""
_LINE_BYTES: Final = 1 << 20
_POLL_S: Final = 0.05

Step = Callable[[], Awaitable[None]]
_NO_STEPS: Final[Mapping[str, Step]] = {}


class SupervisionFailed(Exception):
    """The set of processes cannot go on; the message says which and why."""


class Output(Protocol):
    """Where children's lines and the supervisor's own go."""

    def child_line(self, name: str, line: str) -> None: ...

    def note(self, text: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and how fast, a child that died is started again."""

    limit: int = 5
    """Restarts without a stretch of ``healthy_s`` between them; one more ends everything."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0
    healthy_s: float = 60.0

    def delay_s(self, restarts: int) -> float:
        """Wait before restart number ``restarts``, counted from 1."""
        return min(self.longest_delay_s, self.first_delay_s * 2 ** (restarts - 1))


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to keep alive."""

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str]
    is_ready: Callable[[], Awaitable[bool]]
    """Asked again and again after each start, until it says yes."""
    before_start: Callable[[], None] = lambda: None
    """Clears what an earlier run left, such as its ready file."""
    ready_within_s: float = 600.0
    stop_within_s: float = 10.0
    """From SIGTERM to SIGKILL."""
    log_file: Path | None = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)


class Supervisor:
    """Runs children until ``stop`` is set or one cannot be kept alive. For one event loop."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._children: list[_Child] = []
        self._stopping = False
        self._why: str | None = None
        self._over = asyncio.Event()

    async def run(
        self,
        stages: Sequence[Sequence[ChildSpec]],
        *,
        stop: asyncio.Event,
        kill: asyncio.Event,
        on_ready: Step,
        after: Mapping[str, Step] = _NO_STEPS,
    ) -> None:
        """Starts the children stage by stage, each stage when the one before is ready.

        ``after[name]`` runs once after that child's first start, ``on_ready`` once all are
        ready. Returns after ``stop``; raises SupervisionFailed when a child cannot be kept
        alive or a step raises it. ``kill`` cuts the stop short. In every case no child is left.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._start_all(group, stages, on_ready, after)),
                    group.create_task(self._end(stop)),
                ]
                await self._over.wait()
                self._stopping = True
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                for child in reversed(self._children):
                    await child.stop(kill)
        finally:
            for child in self._children:
                child.kill()
        if self._why is not None:
            raise SupervisionFailed(self._why)

    async def _end(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._over.set()

    async def _start_all(
        self,
        group: asyncio.TaskGroup,
        stages: Sequence[Sequence[ChildSpec]],
        on_ready: Step,
        after: Mapping[str, Step],
    ) -> None:
        for stage in stages:
            async with asyncio.TaskGroup() as starting:
                starts = [
                    starting.create_task(self._bring_up(group, spec, after.get(spec.name)))
                    for spec in stage
                ]
            if not all(start.result() for start in starts):
                return
        try:
            await on_ready()
        except SupervisionFailed as error:
            self._fail(str(error))

    async def _bring_up(self, group: asyncio.TaskGroup, spec: ChildSpec, then: Step | None) -> bool:
        """Starts a child for the first time, and keeps it from then on. False: all is over."""
        child = _Child(spec, self._output, group)
        self._children.append(child)
        try:
            await child.start()
            await child.wait_ready()
            if then is not None:
                await then()
        except SupervisionFailed as error:
            self._fail(str(error))
            return False
        child.keeper = group.create_task(self._keep(child))
        return True

    def _fail(self, why: str) -> None:
        self._why = self._why or why
        self._over.set()

    async def _keep(self, child: _Child) -> None:
        """Restarts a child whenever it ends, within its policy."""
        policy = child.spec.policy
        restarts = 0
        while True:
            await child.ended()
            if self._stopping:
                return
            child.kill()  # what it may have left behind
            lived_s = time.monotonic() - child.ready_at
            restarts = 1 if child.is_ready and lived_s >= policy.healthy_s else restarts + 1
            what = f"{child.spec.name} {child.how_it_ended()}"
            if restarts > policy.limit:
                self._fail(
                    f"{what}; it was restarted {policy.limit} times and keeps ending"
                    f"{child.last_lines()}"
                )
                return
            delay_s = policy.delay_s(restarts)
            self._output.note(f"{what}; restart {restarts} of {policy.limit} in {delay_s:g} s")
            await asyncio.sleep(delay_s)
            if self._stopping:
                return
            try:
                await child.start()
                await child.wait_ready()
            except SupervisionFailed:
                continue  # counted and told by the next turn
            self._output.note(f"{child.spec.name} is ready again")


class _Child:
    """One process, over its restarts."""

    def __init__(self, spec: ChildSpec, output: Output, group: asyncio.TaskGroup) -> None:
        self.spec = spec
        self.keeper: asyncio.Task[None] | None = None
        self.is_ready = False
        self.ready_at = 0.0
        self._killed = False
        self._output = output
        self._group = group
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    async def start(self) -> None:
        """Starts the process. Raises SupervisionFailed when there is no such program."""
        self.is_ready = self._killed = False
        self._last.clear()
        self.spec.before_start()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *_command(self.spec),
                env=dict(self.spec.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise SupervisionFailed(f"{self.spec.name} cannot be started: {error}") from error
        self._reader = self._group.create_task(self._read(self._process))

    async def wait_ready(self) -> None:
        """Returns when it is ready; raises SupervisionFailed when it ends or takes too long."""
        began = time.monotonic()
        told = began
        while not await self.spec.is_ready():
            now = time.monotonic()
            if self._process is None or self._process.returncode is not None:
                await self.ended()
                raise SupervisionFailed(
                    f"{self.spec.name} {self.how_it_ended()}{self.last_lines()}"
                )
            if now - began > self.spec.ready_within_s:
                self.kill()
                raise SupervisionFailed(
                    f"{self.spec.name} was not ready within {self.spec.ready_within_s:g} s"
                )
            if now - told >= 2:
                told = now
                self._output.note(f"waiting for {self.spec.name} ({now - began:.0f} s)")
            await asyncio.sleep(_POLL_S)
        self.is_ready = True
        self.ready_at = time.monotonic()

    async def ended(self) -> None:
        """Waits until the process is gone and, within reason, its output read."""
        if self._process is not None:
            await self._process.wait()
        if self._reader is not None:
            with suppress(TimeoutError):
                # A grandchild may hold the pipe open.
                await asyncio.wait_for(asyncio.shield(self._reader), timeout=1)

    def how_it_ended(self) -> str:
        """``ended with code 1`` or ``was killed by SIGKILL``."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "did not start"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with code {code}"

    async def stop(self, kill: asyncio.Event) -> None:
        """SIGTERM, and SIGKILL when it takes too long or ``kill`` is set."""
        if self.keeper is not None:
            self.keeper.cancel()
            await asyncio.wait([self.keeper])  # it may be starting the process right now
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            waits = [self._group.create_task(wait) for wait in (process.wait(), _set(kill))]
            await asyncio.wait(
                waits, timeout=self.spec.stop_within_s, return_when=asyncio.FIRST_COMPLETED
            )
            for wait in waits:
                wait.cancel()
            if process.returncode is None:
                self._output.note(f"{self.spec.name} did not stop in time and is killed")
        self.kill()
        await self.ended()
        if self._reader is not None:
            self._reader.cancel()

    def kill(self) -> None:
        """Ends the process and what it started, at once. Once only: numbers are reused."""
        if self._process is not None and not self._killed:
            self._killed = True
            # Its session's process group: whatever it started goes too.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self) -> str:
        """The end of its output, for a message."""
        return "".join(f"\n  {line}" for line in self._last)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with _LogFile(self.spec.log_file) as log:
            while True:
                try:
                    data = await process.stdout.readline()
                except ValueError:
                    continue  # an endless line: the stream drops it
                if not data:
                    return
                line = data.decode("utf-8", "replace").rstrip()
                self._last.append(line)
                self._output.child_line(self.spec.name, line)
                if (lost := log.write(line)) is not None:
                    self._output.note(lost)


class _LogFile:
    """Lines on disk, at most twice ``LOG_BYTES``: a full file becomes ``.1``.

    A disk that is full costs lines, not the processes that write them.
    """

    def __init__(self, path: Path | None) -> None:
        """None: lines are dropped."""
        self._path = path
        self._file: FileIO | None = None
        self._told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, line: str) -> str | None:
        """Words for a person when lines begin to be lost."""
        if self._path is None:
            return None
        try:
            self._put(self._path, f"{line}\n".encode())
        except OSError as error:
            told, self._told = self._told, True
            return None if told else f"{self._path} misses lines from here on: {error.strerror}"
        self._told = False
        return None

    def _put(self, path: Path, line: bytes) -> None:
        if self._file is None:
            self._file = FileIO(path, "a")  # no buffer, which a full disk would fill
        self._file.write(line)
        if self._file.tell() > LOG_BYTES:
            self._file.close()
            self._file = None
            path.replace(path.with_name(path.name + ".1"))


async def _set(event: asyncio.Event) -> None:
    await event.wait()


# Runs in the new process, which then becomes the child: asks the kernel to be killed with its
# parent. A program of its own and not a hook after the fork, where nothing is safe with threads.
_DIES_WITH_PARENT: Final = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != int(sys.argv[1]):  # it died in between
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def _command(spec: ChildSpec) -> list[str]:
    """What to run for a child. Raises SupervisionFailed when there is no such program."""
    program = shutil.which(spec.argv[0])
    if program is None:
        raise SupervisionFailed(f"{spec.name} cannot be started: there is no {spec.argv[0]}")
    command = [program, *spec.argv[1:]]
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _DIES_WITH_PARENT, str(os.getpid()), *command]
