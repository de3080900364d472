"""What the guides tell people to type exists: commands, their flags, make targets, settings, metrics.

What the chart's values in them do is looked at in tests/deploy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from chartgen.metrics import declared
from docs_site import ROOT, pages
from headrace_cli.main import app
from headrace_engine.settings import EngineSecrets, EngineSettings
from headrace_gateway.settings import GatewaySecrets, GatewaySettings
from typer.core import TyperGroup

PAGES = [page for page in pages() if "CHANGELOG" not in page.name]
HEADRACE = re.compile(
    r"(?:docker compose run --rm (?:-T )?cli|(?:\.venv/bin/|headrace/bin/)?headrace) (?P<rest>[a-z].*)"
)
MAKE = re.compile(r"(?:`|^\s*)make (?P<target>[a-z][a-z0-9-]*)", re.MULTILINE)
METRIC = re.compile(r"\bheadrace_(?:gateway|engine)_[a-z_]+(?![a-z_{]*\.)")
VARIABLE = re.compile(r"\bHEADRACE_(?:GATEWAY|ENGINE)_[A-Z0-9_]+[A-Z0-9]\b")


def blocks(page: Path) -> Iterator[str]:
    """Lines of shell and console blocks, those that go on joined."""
    text = (ROOT / page).read_text()
    for found in re.finditer(r"```(?:sh|console|bash)\n(.*?)```", text, re.DOTALL):
        yield from found[1].replace("\\\n", " ").splitlines()


def commands() -> list[tuple[str, str]]:
    """Page and arguments of each call of ``headrace``."""
    return [
        (str(page), match["rest"])
        for page in PAGES
        for line in blocks(page)
        if (match := HEADRACE.match(line.strip().removeprefix("$ ")))
    ]


def test_guides_call_the_command_line() -> None:
    assert len(commands()) > 15


@pytest.mark.parametrize(("page", "arguments"), commands())
def test_commands_in_guides_exist_with_their_flags(page: str, arguments: str) -> None:
    words = shlex.split(arguments.partition(">")[0], comments=True)
    command = typer.main.get_command(app)
    while words and isinstance(command, TyperGroup):
        name = words.pop(0)
        assert name in command.commands, f"{page}: headrace {arguments}"
        command = command.commands[name]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    # Settings of the engine are flags of `serve` that it hands on.
    known |= {f"--{name.replace('_', '-')}" for name in EngineSettings.model_fields}
    assert asked <= known, f"{page}: headrace {arguments}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_make_targets_settings_and_metrics_in_guides_exist(page: Path) -> None:
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {match["target"] for match in MAKE.finditer(text)} <= targets
    for bench in re.findall(r"make bench name=([a-z_]+)", text):
        assert (ROOT / f"bench/{bench}.py").is_file(), bench

    variables = {
        cls.env_prefix + name.upper()
        for cls in (GatewaySettings, EngineSettings)
        for name in cls.model_fields
    } | {
        prefix + name.upper() + suffix
        for secrets, prefix in (
            (GatewaySecrets, GatewaySettings.env_prefix),
            (EngineSecrets, EngineSettings.env_prefix),
        )
        for name in secrets.model_fields
        for suffix in ("", "_FILE")
    }
    assert set(VARIABLE.findall(text)) <= variables

    series = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text)}
    whole = set(declared()) | {re.sub(r"_(bucket|sum|count)$", "", name) for name in declared()}
    assert {name for name in series if not name.endswith("_")} <= whole
