"""The command line: arguments in, exit codes and messages out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from headrace_cli.main import app
from headrace_cli.state import StateDir
from support.served import clean_environ, headrace
from typer.testing import CliRunner

COMMANDS = ["serve", "chat", "keys", "doctor", "bench", "cancel", "reset", "version"]


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        headrace(*arguments),
        capture_output=True,
        text=True,
        env=clean_environ() | environ,
        timeout=60,
        check=False,
    )


def test_help_names_every_command() -> None:
    out = CliRunner().invoke(app, ["--help"]).output
    for command in COMMANDS:
        assert re.search(rf"\b{command}\b", out)


@pytest.mark.parametrize(
    "command", [[c] for c in COMMANDS] + [["keys", "create"], ["bench", "served"]]
)
def test_every_command_explains_itself(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


def test_help_keeps_what_stands_in_brackets() -> None:
    for command in (["ps"], ["keys", "create"], ["bench", "served"]):
        out = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        assert "[default: $HEADRACE_STATE_DIR, else $XDG_STATE_HOME/headrace]" in out
        assert "HEADRACE_GATEWAY_PEPPER[_FILE]" in out or command[0] != "keys"


def test_a_failure_is_one_message_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    for command in (["chat", "Hi"], ["cancel", "x"], ["keys", "list"], ["bench", "served"]):
        result = run(*command, HEADRACE_STATE_DIR=str(tmp_path / "s"))
        assert result.returncode == 1
        assert result.stderr.startswith("headrace: No stack runs here")
        assert "headrace serve" in result.stderr
        assert "Traceback" not in result.stderr
    assert not (tmp_path / "s").exists()


def test_the_version_is_printed() -> None:
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\n", run("version").stdout)


def test_reset_asks_before_it_removes(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    arguments = ["reset", f"--state-dir={state.path}"]
    assert CliRunner().invoke(app, arguments, input="n\n").exit_code == 1
    assert state.path.exists()
    assert CliRunner().invoke(app, arguments, input="y\n").exit_code == 0
    assert not state.path.exists()
    result = CliRunner().invoke(app, [*arguments, "--yes"])
    assert (result.exit_code, "nothing to do" in result.output) == (0, True)
