"""Command-line flags of a settings class: ``--max-batch 8``, ``--prefix-cache``, ``--no-…``."""

from __future__ import annotations

import argparse

from headrace_kit.describe import describe
from headrace_kit.settings import Settings, flag_of

_PREFIX = "setting:"


def add_flags(parser: argparse.ArgumentParser, cls: type[Settings]) -> None:
    """Adds a flag for every field. Values stay texts: ``load`` parses all sources alike."""
    group = parser.add_argument_group("settings", "each also by environment and file")
    for info in describe(cls):
        help = f"{info.meaning} (default {info.default_text})".replace("%", "%%")
        dest = f"{_PREFIX}{info.name}"
        if not info.is_switch:
            group.add_argument(
                info.flag, dest=dest, default=None, metavar=info.name.upper(), help=help
            )
            continue
        group.add_argument(
            info.flag, dest=dest, default=None, nargs="?", const="true", metavar="BOOL", help=help
        )
        group.add_argument(
            flag_of(f"no_{info.name}"),
            dest=dest,
            action="store_const",
            const="false",
            help=argparse.SUPPRESS,
        )


def given_flags(parsed: argparse.Namespace) -> dict[str, object]:
    """The flags that were given, by field name, for ``load(cli=…)``."""
    found: dict[str, object] = vars(parsed)
    return {
        name.removeprefix(_PREFIX): value
        for name, value in found.items()
        if name.startswith(_PREFIX) and value is not None
    }
