"""The journal that settings ask for, and where a failed engine leaves it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.core import (
    JOURNALS_KEPT,
    Core,
    build_core,
    end_journal,
    keep_journal,
    open_journal,
)
from headrace_engine.errors import EngineFailed
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel
from headrace_engine.scheduler.journal_file import read_journal
from headrace_engine.scheduler.journal_replay import Replayer
from headrace_engine.settings import EngineSettings, check_settings
from headrace_engine.state.batch import BatchData
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from headrace_kit.errors import SettingsError


class BreakingExecutor(EchoExecutor):
    """Its device breaks in the third batch."""

    def submit(self, batch: BatchData) -> None:
        if batch.pass_id > 2:
            raise RuntimeError("the device broke")
        super().submit(batch)


def test_no_bytes_are_no_journal() -> None:
    assert open_journal(EngineSettings(journal_bytes=0)) == (None, None)
    with pytest.raises(SettingsError, match="journal_bytes is 0"):
        check_settings(EngineSettings(journal_bytes=0, journal_file="x"))


def test_a_file_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="journal_file"):
        open_journal(EngineSettings(journal_file=str(tmp_path / "no" / "file")))


def run_until_it_fails(core: Core) -> None:
    prompt = np.array([1, 2, 3], np.int32)
    core.door.push(Request("r", RequestHandle(1), prompt, Sampling(max_new_tokens=50)))
    failures: list[EngineFailed] = []

    def run() -> None:
        try:
            core.loop.run()
        except EngineFailed as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    core.executor.close()
    assert failures


def both_journals(folder: Path) -> EngineSettings:
    """One in memory, kept when the engine fails, and one in a file."""
    return EngineSettings(
        executor="echo",
        journal_dir=str(folder / "kept"),
        journal_file=str(folder / "live"),
        cache_blocks=64,
        context_tokens=256,
    )


@pytest.mark.rule("journal.every-input")
def test_the_last_record_of_both_files_is_the_pass_that_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = both_journals(tmp_path)
    executor = EchoExecutor(vocabulary=100, context_tokens=256)
    core = build_core(settings, LoadedModel("echo", executor, None), SystemClock())

    def broken(*_: object) -> int:
        raise AssertionError("two blocks in one place")

    monkeypatch.setattr("headrace_engine.scheduler.scheduler.replay_memory", broken)
    run_until_it_fails(core)
    end_journal(core, settings, "engine-1", failed=True)
    for file in (tmp_path / "kept" / "headrace-journal-engine-1.jsonl", tmp_path / "live"):
        (segment,) = read_journal(file.read_text().splitlines(keepends=True))
        assert "s" in [record[0] for record in segment.records], "the pass that broke is not in it"


def test_a_failed_engine_leaves_a_journal_that_replays(tmp_path: Path) -> None:
    settings = both_journals(tmp_path)
    executor = BreakingExecutor(vocabulary=100, context_tokens=256)
    core = build_core(settings, LoadedModel("echo", executor, None), SystemClock())
    run_until_it_fails(core)
    assert core.journal_file is not None
    core.journal_file.close()
    path = keep_journal(core, settings, "engine-1")
    assert path is not None
    assert path == tmp_path / "kept" / "headrace-journal-engine-1.jsonl"
    for file in (path, tmp_path / "live"):
        (segment,) = read_journal(file.read_text().splitlines(keepends=True))
        result = Replayer(segment).run()
        assert result.difference is None
        assert result.passes >= 3
    for number in range(2, 2 + JOURNALS_KEPT):
        assert keep_journal(core, settings, f"engine-{number}") is not None
    names = sorted(each.name for each in (tmp_path / "kept").iterdir())
    assert names == [f"headrace-journal-engine-{n}.jsonl" for n in range(2, 2 + JOURNALS_KEPT)]


def test_a_journal_that_is_gone_meanwhile_does_not_keep_the_new_one_from_being_told(
    tmp_path: Path,
) -> None:
    settings = EngineSettings(cache_blocks=32, journal_dir=str(tmp_path))
    core = build_core(settings, LoadedModel("echo", EchoExecutor(100), None), SystemClock())
    core.executor.close()
    (tmp_path / "headrace-journal-other.jsonl").symlink_to(tmp_path / "gone")

    assert keep_journal(core, settings, "mine") == tmp_path / "headrace-journal-mine.jsonl"
