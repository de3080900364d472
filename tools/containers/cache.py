"""Where what is slow to make is kept between runs, outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CACHE: Final = Path(os.environ.get("HEADRACE_CI_CACHE", "/var/cache/headrace-ci"))
STATE: Final = Path(os.environ.get("HEADRACE_CI_STATE", "/run/headrace-ci"))
ROOT: Final = Path(__file__).resolve().parents[2]


_PAUSES_S: Final = (5.0, 20.0, 60.0)
"""Before each further try at what a network did not give."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"containers: {text}", file=sys.stderr, flush=True)


@contextmanager
def told(what: str) -> Generator[None]:
    """Says what is done, and how long it took."""
    say(f"{what} ...")
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.0f} s")


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 900.0,
) -> str:
    """Standard output of a program. Ends with its output when it fails."""
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments,
        env=None if env is None else os.environ | dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        tail = (done.stdout + done.stderr)[-4000:]
        raise SystemExit(f"containers: `{' '.join(arguments)}` failed ({done.returncode})\n{tail}")
    return done.stdout


def fetch(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 900.0,
) -> str:
    """The same for a program that asks a mirror or an index: tried again when it fails."""
    for pause_s in _PAUSES_S:
        try:
            return run(command, env=env, cwd=cwd, timeout_s=timeout_s)
        except (SystemExit, subprocess.TimeoutExpired) as error:
            say(f"{error}\ncontainers: once more in {pause_s:.0f} s ...")
            time.sleep(pause_s)
    return run(command, env=env, cwd=cwd, timeout_s=timeout_s)
