"""The chart's README: its own words, and a table of the values."""

from __future__ import annotations

import json

from chartgen.values import CHART, Tree, Value, lookup, read

MARK = "<!-- values -->\n"


def text() -> str:
    """The file's content."""
    tree, values = read()
    words = (CHART / "README.in.md").read_text()
    if MARK not in words:
        raise SystemExit(f"charts/headrace/README.in.md has no line {MARK.strip()}")
    return "<!-- Written by `make gen`. Do not edit. -->\n\n" + words.replace(
        MARK, table(tree, values)
    )


def table(tree: Tree, values: list[Value]) -> str:
    """One row for each value that has no values of its own."""
    lines = ["| Value | Default | Meaning |", "|---|---|---|"]
    for value in values:
        default = lookup(tree, value.path)
        if isinstance(default, dict) and default and not value.inline:
            if value.text:
                lines.append(f"| **`{value.path}`** | | {_cell(value.text)} |")
            continue
        shown = json.dumps(default, ensure_ascii=False)
        lines.append(f"| `{value.path}` | {_code(shown)} | {_cell(value.text)} |")
    return "\n".join(lines) + "\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _code(shown: str) -> str:
    return f"`{shown.replace('|', chr(92) + '|')}`"
