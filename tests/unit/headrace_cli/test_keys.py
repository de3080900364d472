"""Which keys the command line finds, and what it says of them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from headrace_cli.errors import CommandFailed
from headrace_cli.keys import KeyPlace, describe, read_export, span_ms, status, write_export
from headrace_cli.state import RunningStack, StateDir
from headrace_transport.address import Access
from headrace_transport.interface import ApiKey

DAY_MS = 86_400_000


def key(**changes: int | None) -> ApiKey:
    return ApiKey(
        public_id="abc",
        digest=bytes(32),
        name="team",
        tenant="t",
        scopes=frozenset({"inference"}),
        models=frozenset(),
        created_ms=0,
        expires_ms=changes.get("expires_ms"),
        revoked_ms=changes.get("revoked_ms"),
        band=1,
        max_concurrency=changes.get("max_concurrency"),
        requests_per_minute=changes.get("requests_per_minute"),
        tokens_per_minute=changes.get("tokens_per_minute"),
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("45m", 2_700_000), ("12h", DAY_MS // 2), ("30d", 30 * DAY_MS), ("2w", 14 * DAY_MS)],
)
def test_spans_of_time_are_understood(text: str, ms: int) -> None:
    assert span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "0d", "1y", "1.5h", "９d"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="no span of time"):
        span_ms(text)


def test_a_span_that_no_calendar_holds_is_refused_and_a_key_that_has_one_is_listed() -> None:
    with pytest.raises(CommandFailed, match="more than a hundred years"):
        span_ms("999999999d")
    assert f"expires {10**18} ms" in describe(key(expires_ms=10**18), 0)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (key(), "active"),
        (key(expires_ms=2 * DAY_MS), "expires 1970-01-03"),
        (key(expires_ms=DAY_MS), "expired"),
        (key(revoked_ms=DAY_MS), "revoked"),
        (key(revoked_ms=2 * DAY_MS), "ends 1970-01-03"),
    ],
)
def test_the_status_is_what_the_key_is_worth_now(stored: ApiKey, words: str) -> None:
    assert status(stored, DAY_MS) == words


def test_a_key_is_described_in_one_line_without_its_digest() -> None:
    line = describe(key(max_concurrency=3, requests_per_minute=60, tokens_per_minute=900), 0)
    assert "60 requests a minute  900 tokens a minute" in line
    assert line.startswith("abc ")
    for words in ("tenant t", "scopes inference", "models all", "at most 3 at once", "'team'"):
        assert words in line
    assert "\\x00" not in line


def test_the_running_stack_is_found_with_its_secrets(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    with pytest.raises(CommandFailed, match="No stack runs here"):
        KeyPlace.find(None, state, {})
    state.announce(RunningStack(1, ("http://x",), (2,), "redis://here", "m"))
    with state.lock():
        place = KeyPlace.find(None, state, {})
    assert place.redis_url == "redis://here"
    assert place.pepper == state.read("pepper")
    assert place.access.password == state.read("redis_password")
    assert place.pepper is not None
    assert place.pepper not in repr(place)


def test_another_deployment_needs_its_pepper_where_keys_are_made(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s")
    place = KeyPlace.find("redis://there", state, {})
    assert place.pepper is None
    with pytest.raises(CommandFailed, match="pepper") as caught:
        place.check_pepper()
    assert "HEADRACE_GATEWAY_PEPPER" in caught.value.hint
    (tmp_path / "pepper").write_text("p" * 20 + "\n")
    environ = {
        "HEADRACE_GATEWAY_REDIS_URL": "redis://env",
        "HEADRACE_GATEWAY_PEPPER_FILE": str(tmp_path / "pepper"),
        "HEADRACE_GATEWAY_REDIS_PASSWORD": "pw",
    }
    assert KeyPlace.find(None, state, environ) == KeyPlace(
        "redis://env", Access(password="pw"), "p" * 20
    )
    with pytest.raises(CommandFailed, match="HEADRACE_GATEWAY_PEPPER_FILE"):
        KeyPlace.find(None, state, {**environ, "HEADRACE_GATEWAY_PEPPER_FILE": "/no/such"})


async def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(CommandFailed, match="cannot be used"):
        async with KeyPlace("redis://127.0.0.1:1/0", Access(), "p" * 20).open():
            pass


def test_exports_are_the_owners_alone_and_come_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text("old")
    path.chmod(0o644)
    write_export(b"a\nb\n", path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_export(path) == b"a\nb\n"
    assert "wrote 2 keys to" in capsys.readouterr().out
    write_export(b"a\n", path)
    assert "wrote 1 key to" in capsys.readouterr().out


def test_an_export_that_cannot_be_written_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.jsonl"
    write_export(b"old\n", path)

    def full(source: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CommandFailed, match="No space left"):
        write_export(b"new\n", path)
    assert read_export(path) == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_into_a_pipe_or_a_device_leaves_it_as_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o622)
    pipe.chmod(0o622)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_export(b"a\n", pipe)
        assert os.read(reader, 10) == b"a\n"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert pipe.stat().st_mode & 0o777 == 0o622
    with pytest.raises(CommandFailed, match="No space left on device"):
        write_export(b"a\n", Path("/dev/full"))


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="No such file"):
        read_export(tmp_path / "none")
    with pytest.raises(CommandFailed, match="Is a directory"):
        write_export(b"", tmp_path)
