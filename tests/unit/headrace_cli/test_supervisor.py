"""The supervisor, with small real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from headrace_cli.supervisor import (
    ChildSpec,
    RestartPolicy,
    SupervisionFailed,
    Supervisor,
)
from support.waiting import eventually, wait_until

QUICK = RestartPolicy(limit=2, first_delay_s=0.01, longest_delay_s=0.01)
WAITS_FOR_TERM = """
import signal, sys, time, os, pathlib
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
me = pathlib.Path(sys.argv[1])
print("hello", flush=True)
me.write_text(str(os.getpid()))
time.sleep(60)
"""


class Lines:
    """Collects what would be printed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._more = asyncio.Event()

    def child_line(self, name: str, line: str) -> None:
        self.note(f"{name}: {line}")

    def note(self, text: str) -> None:
        self.lines.append(text)
        self._more.set()

    async def until(self, text: str) -> None:
        while not self.has(text):
            await self._more.wait()
            self._more.clear()

    def has(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def child(
    folder: Path,
    name: str = "child",
    code: str = WAITS_FOR_TERM,
    *,
    policy: RestartPolicy = QUICK,
    stop_within_s: float = 10,
    log_file: Path | None = None,
) -> ChildSpec:
    ready = folder / f"{name}.pid"

    async def is_ready() -> bool:
        return ready.exists() and ready.read_text() != ""

    return ChildSpec(
        name=name,
        argv=[sys.executable, "-c", code, str(ready)],
        environ=dict(os.environ),
        is_ready=is_ready,
        before_start=lambda: ready.unlink(missing_ok=True),
        stop_within_s=stop_within_s,
        policy=policy,
        log_file=log_file,
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(folder: Path, name: str = "child") -> int:
    return int((folder / f"{name}.pid").read_text())


async def nothing() -> None:
    """A step that does nothing."""


class Run:
    """One supervised run, driven by a test."""

    def __init__(self) -> None:
        self.output = Lines()
        self.stop = asyncio.Event()
        self.kill = asyncio.Event()
        self.ready = asyncio.Event()
        self.steps: list[str] = []

    async def of(self, *specs: ChildSpec) -> None:
        async def on_ready() -> None:
            self.ready.set()

        async def after_first() -> None:
            self.steps.append("after first")

        await Supervisor(self.output).run(
            [[spec] for spec in specs],
            stop=self.stop,
            kill=self.kill,
            on_ready=on_ready,
            after={specs[0].name: after_first},
        )


async def test_children_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    run = Run()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path, "first"), child(tmp_path, "second")))
        await run.ready.wait()
        pids = [pid_of(tmp_path, name) for name in ("first", "second")]
        run.stop.set()
    assert run.steps == ["after first"]
    assert run.output.lines == ["first: hello", "second: hello", "second: bye", "first: bye"]
    assert not any(map(is_alive, pids))


async def test_children_of_one_stage_start_together(tmp_path: Path) -> None:
    waits = WAITS_FOR_TERM.replace(
        "me.write_text",
        "\nwhile not (me.parent / 'second.pid').exists(): time.sleep(0.01)\nme.write_text",
    )
    ready, stop = asyncio.Event(), asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    async with asyncio.TaskGroup() as group:
        stage = [child(tmp_path, "first", waits), child(tmp_path, "second")]
        supervisor = Supervisor(Lines())
        group.create_task(
            supervisor.run([stage], stop=stop, kill=asyncio.Event(), on_ready=on_ready)
        )
        await ready.wait()
        stop.set()
    assert not is_alive(pid_of(tmp_path, "first"))


async def test_a_failure_in_a_stage_stops_its_other_children(tmp_path: Path) -> None:
    never = child(tmp_path, "never", WAITS_FOR_TERM.replace("me.write_text(str(os.getpid()))", ""))
    fails = child(tmp_path, "fails", "raise SystemExit(3)")
    output = Lines()
    with pytest.raises(SupervisionFailed, match="fails ended with code 3"):
        await Supervisor(output).run(
            [[never, fails]], stop=asyncio.Event(), kill=asyncio.Event(), on_ready=nothing
        )


async def test_a_child_that_dies_is_started_again_and_the_reason_told(tmp_path: Path) -> None:
    run = Run()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path)))
        await run.ready.wait()
        first = pid_of(tmp_path)
        os.kill(first, signal.SIGKILL)
        await run.output.until("child is ready again")
        assert pid_of(tmp_path) != first
        run.stop.set()
    assert run.output.has("child was killed by SIGKILL; restart 1 of 2 in 0.01 s")


async def test_restarts_after_a_healthy_stretch_are_counted_anew(tmp_path: Path) -> None:
    policy = RestartPolicy(limit=1, first_delay_s=0.01, longest_delay_s=0.01, healthy_s=0.05)
    run = Run()
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path, policy=policy)))
        await run.ready.wait()
        for _ in range(3):
            await asyncio.sleep(2 * policy.healthy_s)
            run.output.lines.clear()
            os.kill(pid_of(tmp_path), signal.SIGKILL)
            await run.output.until("child is ready again")
            assert run.output.has("restart 1 of 1")
        run.stop.set()


async def test_a_child_that_keeps_dying_ends_everything_with_the_reason(tmp_path: Path) -> None:
    dies = """
import os, pathlib, sys, time
me = pathlib.Path(sys.argv[1])
me.write_text(str(os.getpid()))
while not me.with_name("die").exists(): time.sleep(0.01)
sys.exit(7)
"""
    run = Run()
    running = asyncio.create_task(run.of(child(tmp_path, "steady"), child(tmp_path, "weak", dies)))
    await run.ready.wait()
    (tmp_path / "die").touch()
    with pytest.raises(SupervisionFailed, match="ended with code 7; it was restarted 2 times"):
        await running
    assert not is_alive(pid_of(tmp_path, "steady"))


async def test_a_child_that_never_gets_ready_fails_at_once_with_its_last_lines(
    tmp_path: Path,
) -> None:
    run = Run()
    with pytest.raises(SupervisionFailed, match=r"child ended with code 3\n  no such model"):
        await run.of(child(tmp_path, code="print('no such model'); raise SystemExit(3)"))
    assert not run.ready.is_set()


async def test_a_program_that_is_missing_is_told(tmp_path: Path) -> None:
    spec = child(tmp_path)
    spec = ChildSpec(name="child", argv=["/no/such"], environ={}, is_ready=spec.is_ready)
    with pytest.raises(SupervisionFailed, match="child cannot be started"):
        await Run().of(spec)


async def test_a_failing_step_stops_the_children_in_order(tmp_path: Path) -> None:
    async def refuse() -> None:
        raise SupervisionFailed("no key")

    output = Lines()
    with pytest.raises(SupervisionFailed, match="no key"):
        await Supervisor(output).run(
            [[child(tmp_path)]], stop=asyncio.Event(), kill=asyncio.Event(), on_ready=refuse
        )
    assert output.has("child: bye")


STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = subprocess.Popen(["sleep", "60"])
pathlib.Path(sys.argv[1] + ".inner").write_text(str(inner.pid))
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.parametrize("insist", [False, True])
async def test_a_child_that_ignores_the_stop_is_killed_with_what_it_started(
    tmp_path: Path, insist: bool
) -> None:
    run = Run()
    spec = child(tmp_path, code=STUBBORN, stop_within_s=60 if insist else 0.1)
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(spec))
        await run.ready.wait()
        run.stop.set()
        if insist:
            run.kill.set()
    assert run.output.has("did not stop in time and is killed")
    assert not is_alive(pid_of(tmp_path))
    inner = int((tmp_path / "child.pid.inner").read_text())
    await eventually(lambda: not is_running(inner))


def is_running(pid: int) -> bool:
    """Alive and not a zombie that waits for a reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    run = Run()
    never = child(tmp_path, code="import time; print('up', flush=True); time.sleep(60)")
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(never))
        await run.output.until("up")
        run.stop.set()
    assert not run.ready.is_set()


async def test_lines_go_to_the_log_file_too(tmp_path: Path) -> None:
    run = Run()
    log = tmp_path / "child.log"
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path, log_file=log)))
        await run.ready.wait()
        run.stop.set()
    assert log.read_text() == "hello\nbye\n"


async def test_a_full_log_file_is_put_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace_cli.supervisor.LOG_BYTES", 3)
    run = Run()
    log = tmp_path / "child.log"
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path, log_file=log)))
        await run.ready.wait()
        run.stop.set()
    assert (tmp_path / "child.log.1").read_text() == "bye\n"
    assert not log.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
async def test_a_full_disk_costs_lines_and_no_process(tmp_path: Path) -> None:
    run = Run()
    log = tmp_path / "child.log"
    log.symlink_to("/dev/full")
    async with asyncio.TaskGroup() as group:
        group.create_task(run.of(child(tmp_path, log_file=log)))
        await run.ready.wait()
        run.stop.set()
    told = [line for line in run.output.lines if "misses lines from here on" in line]
    assert told == [f"{log} misses lines from here on: No space left on device"]


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    supervisor = f"""
import asyncio, sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
from unit_supervisor_child import main
asyncio.run(main(Path({str(tmp_path)!r})))
"""
    (tmp_path / "unit_supervisor_child.py").write_text(
        textwrap.dedent(f"""
        import asyncio, os, sys
        from headrace_cli.output import Console
        from headrace_cli.supervisor import ChildSpec, Supervisor

        async def main(folder):
            ready = folder / "child.pid"
            async def is_ready():
                return ready.exists()
            async def on_ready():
                print("ready", flush=True)
            spec = ChildSpec("child", [sys.executable, "-c", {WAITS_FOR_TERM!r}, str(ready)],
                             dict(os.environ), is_ready)
            await Supervisor(Console.standard(quiet=True)).run(
                [[spec]], stop=asyncio.Event(), kill=asyncio.Event(), on_ready=on_ready)
        """)
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", supervisor], stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        inner = pid_of(tmp_path)
        process.kill()
    wait_until(lambda: not is_running(inner), "its child lives on")
