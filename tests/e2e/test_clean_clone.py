"""The README's main command, in a fresh clone and a fresh environment, as a newcomer runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_S = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(900)]


def cloned(folder: Path) -> Path:
    """A clone of what is committed."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is nothing to clone")
    clone = folder / "headrace"
    subprocess.run(
        ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(clone)], check=True
    )
    return clone


def environment(folder: Path) -> dict[str, str]:
    """A newcomer's: nothing of this test run, state in a folder of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "VIRTUAL_ENV", "PYTEST_", "MAKE", "MFLAGS"))
    }
    own = str(Path(sys.prefix) / "bin")
    path = [part for part in kept["PATH"].split(os.pathsep) if part != own]
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return kept | {
        "PATH": os.pathsep.join(path),
        "PYTHON": python,
        "PYTHONUNBUFFERED": "1",
        "HEADRACE_STATE_DIR": str(folder / "state"),
    }


@contextmanager
def serving(clone: Path, env: dict[str, str]) -> Generator[tuple[subprocess.Popen[str], list[str]]]:
    """`make serve`, and the lines it printed until the stack was ready."""
    process = subprocess.Popen(
        ["make", "serve", "ARGS=--http-port 0 --grpc-port 0"],
        cwd=clone,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if re.fullmatch(r"ready http://127\.0\.0\.1:\d+", lines[-1]):
                break
        else:
            pytest.fail("make serve ended before it was ready:\n" + "\n".join(lines[-40:]))
        yield process, lines
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def printed_curl(lines: list[str]) -> list[str]:
    """The curl command among the lines, as a shell would split it."""
    text = "\n".join(lines)
    found = re.search(r"^ *(curl (?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert found, text
    return shlex.split(found[1].replace("\\\n", " "))


def processes_below(folder: Path) -> list[str]:
    """Command lines of processes that run out of ``folder``."""
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended while we looked
        if str(folder) in command:
            found.append(command)
    return found


def test_make_serve_answers_its_own_curl_line_and_stops_cleanly_twice(tmp_path: Path) -> None:
    clone, env = cloned(tmp_path), environment(tmp_path)
    for run in ("first", "second"):
        began = time.monotonic()
        with serving(clone, env) as (process, lines):
            print(f"{run} run: ready after {time.monotonic() - began:.0f} s")
            answer = subprocess.run(
                [*printed_curl(lines), "-sS", "--max-time", "120"],
                capture_output=True,
                text=True,
                check=True,
            )
            body = json.loads(answer.stdout)
            assert body["choices"][0]["message"]["content"].strip(), body
            os.killpg(process.pid, signal.SIGINT)
            process.communicate(timeout=STOP_S)
        wait_until(lambda: not processes_below(tmp_path), "a process was left", every_s=0.1)
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == "", "running it must leave nothing behind in the checkout"
