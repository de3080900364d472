"""What ``serve`` prints: its own words on standard output, children's lines on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final, TextIO

_COLORS: Final = {"valkey": 33, "engine": 36, "gateway": 32}


class Console:
    """Prefixes every line with its process. One per command."""

    def __init__(self, out: TextIO, err: TextIO, *, width: int = 9, quiet: bool = False) -> None:
        """``quiet``: children's lines are only in their log files."""
        self._out = out
        self._err = err
        self._width = width
        self._quiet = quiet
        self._colored = err.isatty()

    @classmethod
    def standard(cls, *, quiet: bool) -> Console:
        return cls(sys.stdout, sys.stderr, quiet=quiet)

    def say(self, text: str) -> None:
        """For the person, and for programs that wait for a line."""
        _print(text, self._out)

    def note(self, text: str) -> None:
        """What the supervisor does."""
        _print(f"{'headrace':{self._width}} | {text}", self._err)

    def child_line(self, name: str, line: str) -> None:
        """A line that a child wrote."""
        if self._quiet:
            return
        prefix = f"{name:{self._width}} |"
        if self._colored:
            prefix = f"\x1b[{_COLORS.get(name.split('-')[0], 35)}m{prefix}\x1b[0m"
        _print(f"{prefix} {line}", self._err)


def _print(text: str, target: TextIO) -> None:
    # Whoever read it is gone (`| head`, a closed terminal): the stack goes on, its log files too.
    with suppress(OSError):
        print(text, file=target, flush=True)
