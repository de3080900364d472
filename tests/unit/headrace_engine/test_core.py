"""A core is built whole, or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from headrace_engine.core import build_core
from headrace_engine.errors import ModelRejected
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel
from headrace_engine.scheduler.journal_file import read_journal
from headrace_engine.settings import EngineSettings
from headrace_kit.clock import SystemClock


class Refusing(EchoExecutor):
    """Has no memory."""

    def start(self, limits: ExecutorLimits) -> None:
        raise MemoryError(f"{limits.region_bytes} bytes")


def executors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "executor"]


def test_its_executor_has_started_and_takes_what_the_settings_say() -> None:
    settings = EngineSettings(cache_blocks=32, block_tokens=8, max_batch=4)

    core = build_core(settings, LoadedModel("m", EchoExecutor(100), None), SystemClock())

    assert len(executors()) == 1
    limits = core.executor.limits
    assert (limits.slots, limits.block_tokens, limits.region_bytes) == (4, 8, 32 * 64)
    assert core.settings.pool_blocks == 32
    core.executor.close()
    assert executors() == []


@pytest.mark.parametrize(
    ("executor", "settings", "error"),
    [
        (EchoExecutor(100), EngineSettings(cache_blocks=1), ModelRejected),
        (Refusing(100), EngineSettings(cache_blocks=32), MemoryError),
    ],
)
def test_what_cannot_start_leaves_no_thread(
    executor: EchoExecutor, settings: EngineSettings, error: type[Exception]
) -> None:
    with pytest.raises(error):
        build_core(settings, LoadedModel("m", executor, None), SystemClock())

    assert executors() == []


def test_a_loop_that_cannot_be_made_leaves_neither_thread_nor_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no such lifecycle")

    monkeypatch.setattr("headrace_engine.loop.thread.Lifecycle.__init__", broken)
    file = tmp_path / "journal"
    settings = EngineSettings(cache_blocks=32, journal_file=str(file))

    with pytest.raises(ValueError, match="no such lifecycle"):
        build_core(settings, LoadedModel("m", EchoExecutor(100), None), SystemClock())

    assert executors() == []
    (segment,) = read_journal(file.read_text().splitlines(keepends=True))
    assert segment.records == []
