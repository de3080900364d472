"""The command line: arguments in, exit codes and messages out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from headrace_cli import chat
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


@pytest.mark.parametrize("buffered", ["", "1"])
def test_an_output_that_takes_nothing_ends_a_command_in_a_line(buffered: str) -> None:
    environ = clean_environ() | {"PYTHONUNBUFFERED": buffered}
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full, os.fdopen(writer, "w") as gone:
        for target, told in ((full, "headrace: [Errno 28] No space left on device\n"), (gone, "")):
            for command in ("version", "--help"):
                result = subprocess.run(
                    headrace(command),
                    stdout=target,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environ,
                    timeout=60,
                    check=False,
                )
                assert (result.returncode, result.stderr) == (1, told)


def test_a_command_without_an_output_runs() -> None:
    closed = f"{shlex.join(headrace('version'))} >&-"
    result = subprocess.run(closed, shell=True, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(("whole", "code"), [(True, 0), (False, 130)])
def test_an_answer_that_was_cancelled_is_no_success(
    whole: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(*_: object, **__: object) -> bool:
        return whole

    monkeypatch.setattr(chat, "run", answered)
    arguments = ["chat", "Hi", "--url", "http://x", "--api-key", "k"]
    assert CliRunner().invoke(app, arguments).exit_code == code


@pytest.mark.parametrize("grace", ["nan", "inf", "-1", "86401"])
def test_an_engine_drains_for_a_day_at_most(grace: str) -> None:
    result = CliRunner().invoke(app, ["drain", "pod", "--grace", grace])
    assert result.exit_code == 2
    assert "--grace" in result.output


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
