"""The state directory: where it is, who may read it, who holds it."""

from __future__ import annotations

from pathlib import Path

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.state import RunningStack, StateDir

STACK = RunningStack(
    pid=7, urls=("http://127.0.0.1:1",), grpc_ports=(2,), redis_url="redis://x", model="m"
)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("given", "environ", "wanted"),
    [
        (Path("/a"), {"HEADRACE_STATE_DIR": "/b", "XDG_STATE_HOME": "/c"}, "/a"),
        (None, {"HEADRACE_STATE_DIR": "/b", "XDG_STATE_HOME": "/c"}, "/b"),
        (None, {"XDG_STATE_HOME": "/c", "HOME": "/d"}, "/c/headrace"),
        (None, {"HOME": "/d"}, "/d/.local/state/headrace"),
    ],
)
def test_the_flag_goes_before_the_environment_and_that_before_the_default(
    given: Path | None, environ: dict[str, str], wanted: str
) -> None:
    assert StateDir.locate(given, environ).path == Path(wanted)


def test_only_the_owner_can_read_what_is_there(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    state.secret(state.pepper_file)
    assert {mode(state.path), mode(state.data), mode(state.run), mode(state.logs)} == {0o700}
    assert mode(state.pepper_file) == 0o600
    state.path.chmod(0o755)
    state.open()
    assert mode(state.path) == 0o700


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    first = state.secret(state.pepper_file)
    assert len(first) >= 32
    assert StateDir(state.path).secret(state.pepper_file) == first


def test_a_second_stack_is_refused_and_told_where_the_first_is(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    with state.lock():
        state.announce(STACK)
        assert state.is_locked()
        with pytest.raises(
            CommandFailed, match=r"already runs .*\(process 7, http://127.0.0.1:1\)"
        ):
            with StateDir(state.path).lock():
                pass
    assert not state.is_locked()


def test_what_a_stack_announces_can_be_read_until_it_withdraws(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    assert state.running() is None
    state.announce(STACK)
    assert state.running() == STACK
    state.withdraw()
    assert state.running() is None


def test_reset_removes_a_state_directory_and_nothing_else(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    with state.lock(), pytest.raises(CommandFailed, match="already runs"):
        state.remove()
    state.remove()
    assert not state.path.exists()
    state.remove()
    foreign = tmp_path / "documents"
    foreign.mkdir()
    with pytest.raises(CommandFailed, match="not a state directory"):
        StateDir(foreign).remove()
    assert foreign.exists()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandFailed, match="cannot be used") as caught:
        StateDir(tmp_path / "file" / "s").open()
    assert "--state-dir" in caught.value.hint
