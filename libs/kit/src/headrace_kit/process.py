"""What the processes of all services do alike: start-up, exit codes, event loop, ready file."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from headrace_kit.errors import SettingsError
from headrace_kit.flags import add_flags, given_flags
from headrace_kit.settings import Loaded, Secrets, Settings, load_report, load_secrets

T = TypeVar("T")
S = TypeVar("S", bound=Settings)
X = TypeVar("X", bound=Secrets)

OK: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
"""Exit codes: stopped as asked; broke; would not start with these settings, this model or this
server."""


class Stopped(Exception):
    """The process was asked to stop before this work was done."""


def read_settings(
    settings: type[S],
    secrets: type[X],
    argv: Sequence[str] | None,
    *,
    description: str | None,
    check: Callable[[S, X], object],
) -> tuple[Loaded[S], X] | None:
    """Settings and secrets of a process, from its flags, environment and file.

    ``check`` raises ``SettingsError`` for what does not fit together. None: they are refused, and
    standard error says why; logging is not set up yet.
    """
    prog = f"headrace-{settings.section}"
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument(
        "--config", metavar="FILE", help=f"settings file (yaml, section {settings.section})"
    )
    add_flags(parser, settings)
    flags = parser.parse_args(argv)
    try:
        loaded = load_report(settings, cli=given_flags(flags), file=flags.config)
        hidden = load_secrets(secrets)
        check(loaded.settings, hidden)
    except SettingsError as error:
        print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201 - logging is not set up
        return None
    return loaded, hidden


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop for a process: uvloop where there is one, which costs less for each message."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


async def unless_stopped(stopping: asyncio.Event, work: Coroutine[object, object, T]) -> T:
    """The result of ``work``; cancels it and raises ``Stopped`` when ``stopping`` is set first."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        watching.cancel()
        if not doing.done():
            doing.cancel()
        await asyncio.wait({doing, watching})
    if doing.cancelled():
        raise Stopped
    return doing.result()


class ReadyFile:
    """A file that says, while it is there, that requests are served, and where."""

    def __init__(self, path: str | None) -> None:
        """None: there is no such file."""
        self._path = None if path is None else Path(path)

    def write(self, facts: Mapping[str, object]) -> None:
        """``facts`` and the process id, as JSON. A reader sees the whole of it or nothing."""
        if self._path is None:
            return
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"pid": os.getpid(), **facts}))
        fresh.replace(self._path)

    def remove(self) -> None:
        """No more requests are welcome."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
