"""Commands that README and guides tell people to type: each is one that there is, with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
import typer
from headrace_cli.main import app
from typer.core import TyperGroup

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
HEADRACE: Final = cast(Any, typer.main.get_command(app))
VIA_COMPOSE: Final = ("docker", "compose", "run", "--rm", "cli")
TARGETS: Final = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def typed(page: Path) -> Iterator[list[str]]:
    """Every command of the page's shell blocks, as words."""
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r"\s(?:\||&&|;)\s", line):
                try:
                    words = shlex.split(command.strip().removeprefix("$ "), comments=True)
                except ValueError:
                    continue  # part of a text over several lines
                while words and re.fullmatch(r"\w+=\S*", words[0]):
                    words = words[1:]
                yield words


def commands() -> list[tuple[str, list[str]]]:
    """Those of ``headrace``, without that word, each with its page."""
    found: list[tuple[str, list[str]]] = []
    for page in PAGES:
        for words in typed(page):
            if words and Path(words[0]).name == "headrace":
                found.append((page.stem, words[1:]))
            elif tuple(words[: len(VIA_COMPOSE)]) == VIA_COMPOSE:
                found.append((page.stem, words[len(VIA_COMPOSE) :]))
    return found


@pytest.mark.parametrize(("page", "words"), commands())
def test_the_command_and_its_options_exist(page: str, words: list[str]) -> None:
    command = HEADRACE
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        name, *words = words
        assert name in command.commands, f"{page}: headrace has no {name}"
        command = command.commands[name]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")} - {"--help"}
    assert asked <= known, f"{page}: headrace {command.name} does not take {asked - known}"


def test_guides_have_commands() -> None:
    assert len(commands()) > 20


def test_every_target_of_make_that_is_told_of_exists() -> None:
    told: dict[str, str] = {}
    for page in PAGES:
        words = re.findall(r"`make ([a-z0-9-]+)", page.read_text())
        words += [each[1] for each in typed(page) if each[:1] == ["make"] and len(each) > 1]
        told |= {word: page.stem for word in words if re.fullmatch(r"[a-z0-9-]+", word)}
    assert len(told) > 5
    assert not {word: page for word, page in told.items() if word not in TARGETS}
