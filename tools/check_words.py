"""Refuses words that do not belong in the repository, and names that say nothing.

Names of registry hosts and paths of one machine would tie the code to a place. A class called
``SomethingManager`` has no idea of its own.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = ("Manager", "Helper", "Util", "Utils", "Impl", "V2", "New")
# Spelled in pieces, so that this file passes its own check.
WORDS = re.compile(
    "|".join(
        (
            r"pypi" + r"\.org",
            r"pythonhosted" + r"\.org",
            r"registry\.npmjs" + r"\.org",
            r"deb" + r"\.debian\.org",
            r"download\.pytorch" + r"\.org",
            r"/work" + r"/",
            r"\.\./shared" + r"/",
            r"/opt/" + r"wheels",
            r"^(?:<{7}|>{7}) " + r"\S",
        )
    ),
    re.MULTILINE,
)


def tracked() -> Iterator[Path]:
    """Files that are, or are about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in sorted(set(listed.stdout.split("\0"))):
        path = ROOT / name
        if name and path.is_file():
            yield path


def word_problems(name: str, text: str) -> list[str]:
    """Forbidden words, with their lines."""
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()!r} does not belong here"
        for found in WORDS.finditer(text)
    ]


def name_problems(name: str, text: str) -> list[str]:
    """Classes with an empty suffix."""
    return [
        f"{name}:{node.lineno}: class {node.name}: say what it is, not {suffix!r}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for suffix in SUFFIXES
        if node.name.endswith(suffix)
    ]


def main() -> int:
    """Checks every text file."""
    problems: list[str] = []
    for path in tracked():
        name = str(path.relative_to(ROOT))
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # a binary has no words
        problems += word_problems(name, text)
        if path.suffix == ".py" and not name.startswith("libs/contracts/src/headrace_contracts/pb"):
            problems += name_problems(name, text)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
