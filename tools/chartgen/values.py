"""The chart's values with the words that stand above them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml

CHART: Final = Path(__file__).resolve().parents[2] / "charts/headrace"
Tree = dict[str, object]

_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][\w-]*):(?P<rest>.*)")
_WORDS: Final = re.compile(r" *# -- (?P<text>.*)")
_MORE: Final = re.compile(r" *# (?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Value:
    """One line of ``values.yaml``."""

    path: str
    """Keys joined by dots."""
    text: str
    """What it is for; empty where nothing is said."""
    inline: bool
    """Whether the default stands on the key's own line."""


def read(chart: Path = CHART) -> tuple[Tree, list[Value]]:
    """The default values, and every key in order. Words begin with ``# --`` above their key."""
    source = (chart / "values.yaml").read_text()
    found: list[Value] = []
    path: list[tuple[int, str]] = []
    words: list[str] = []
    for line in source.splitlines():
        if begin := _WORDS.fullmatch(line):
            words = [begin["text"]]
        elif words and (more := _MORE.fullmatch(line)):
            words.append(more["text"])
        elif key := _KEY.fullmatch(line):
            indent = len(key["indent"])
            path = [*(step for step in path if step[0] < indent), (indent, key["key"])]
            name = ".".join(step for _, step in path)
            found.append(Value(name, " ".join(words), bool(key["rest"].strip())))
            words = []
    return yaml.safe_load(source), found


def lookup(tree: Tree, path: str) -> object:
    """The default at a path."""
    key, _, rest = path.partition(".")
    return lookup(cast(Tree, tree[key]), rest) if rest else tree[key]
