"""What the processes of all services share."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from headrace_kit.errors import SettingsError
from headrace_kit.process import ReadyFile, Stopped, new_loop, read_settings, unless_stopped
from headrace_kit.settings import Secrets, Settings, setting
from pydantic import SecretStr


class MillSettings(Settings, env_prefix="HEADRACE_MILL_"):
    """Of a process that grinds."""

    stones: int = setting(2, ge=1)
    """Stones."""


class MillSecrets(Secrets, env_prefix="HEADRACE_MILL_"):
    """Its secret."""

    grain: SecretStr | None = None
    """What it grinds."""


def read(argv: list[str], odd: bool = False) -> tuple[int, str | None] | None:
    """Stones and grain, or None when they are refused."""

    def check(settings: MillSettings, _hidden: MillSecrets) -> None:
        if odd and settings.stones % 2:
            raise SettingsError(["stones come in pairs"])

    found = read_settings(MillSettings, MillSecrets, argv, description="Grinds.", check=check)
    if found is None:
        return None
    loaded, hidden = found
    grain = None if hidden.grain is None else hidden.grain.get_secret_value()
    return loaded.settings.stones, grain


def test_flags_files_and_secrets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MILL_GRAIN", "rye")
    (tmp_path / "file.yaml").write_text("mill: {stones: 4}")
    assert read([]) == (2, "rye")
    assert read(["--config", str(tmp_path / "file.yaml")]) == (4, "rye")
    assert read(["--stones", "6"]) == (6, "rye")


def test_what_is_refused_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(["--stones", "0"]) is None
    assert "headrace-mill" in (told := capsys.readouterr().err)
    assert "--stones" in told
    assert read(["--stones", "3"], odd=True) is None
    assert "stones come in pairs" in capsys.readouterr().err


def test_the_ready_file_is_whole_and_goes_again(tmp_path: Path) -> None:
    path = tmp_path / "ready"
    ready = ReadyFile(str(path))
    ready.remove()
    ready.write({"http_port": 7})
    assert json.loads(path.read_text()) == {"http_port": 7, "pid": os.getpid()}
    assert list(tmp_path.iterdir()) == [path]
    ready.remove()
    assert not path.exists()


def test_without_a_ready_file_nothing_is_written() -> None:
    ready = ReadyFile(None)
    ready.write({"http_port": 7})
    ready.remove()


async def test_work_that_ends_first_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    assert await unless_stopped(asyncio.Event(), work()) == 3


async def test_a_stop_cancels_the_work() -> None:
    stopping, cancelled = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            stopping.set()
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    with pytest.raises(Stopped):
        await unless_stopped(stopping, work())
    assert cancelled.is_set()


async def test_an_error_of_the_work_comes_through() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await unless_stopped(asyncio.Event(), work())


@pytest.mark.skipif(sys.platform == "win32", reason="there is no uvloop")
def test_the_loop_is_uvloops() -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert type(runner.get_loop()).__module__.startswith("uvloop")
        runner.run(asyncio.sleep(0))
