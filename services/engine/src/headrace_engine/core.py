"""The engine below its intake: sized for a model, built, and not yet running."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_kit.clock import Clock
from headrace_kit.errors import SettingsError
from headrace_kit.log import get_logger

from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway, OutputSink
from headrace_engine.loading import LoadedModel, fit
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_file import JournalFile, write_journal
from headrace_engine.scheduler.settings import SchedulerSettings
from headrace_engine.settings import EngineSettings

log = get_logger(__name__)

JOURNALS_KEPT: Final = 5
"""Of engines that failed, in a `journal_dir` of their own."""


@dataclass(frozen=True, slots=True)
class Core:
    """The engine below intake. Its executor thread has started; ``loop.run`` needs a thread."""

    model: LoadedModel
    settings: SchedulerSettings
    door: EngineGateway
    executor: ExecutorThread
    loop: EngineLoop
    journal_file: JournalFile | None = None
    """To be closed once the engine thread has ended."""


def build_core(
    settings: EngineSettings,
    model: LoadedModel,
    clock: Clock,
    outputs: OutputSink | None = None,
) -> Core:
    """Sizes and builds everything below intake, and starts the executor thread.

    ``outputs``: where the engine's outputs go, instead of waiting at the door.

    Raises ``ModelRejected`` where the settings do not fit the model, ``SettingsError`` where the
    journal's file cannot be written.
    """
    numbers = fit(settings, model.executor)
    limits = executor_limits(numbers, model.executor.block_bytes(numbers.block_tokens))
    journal, sink = open_journal(settings)
    door = EngineGateway(clock, outputs)
    executor = ExecutorThread(model.executor, limits)
    executor.start()
    try:
        loop = EngineLoop(door, executor, numbers, clock, model.executor.shape, journal=journal)
    except BaseException:
        executor.close()
        if sink is not None:
            sink.close()
        raise
    return Core(model, numbers, door, executor, loop, sink)


def open_journal(settings: EngineSettings) -> tuple[Journal | None, JournalFile | None]:
    """The journal that is wanted, and its file. Raises ``SettingsError`` where that cannot be."""
    if not settings.journal_bytes:
        return None, None
    sink: JournalFile | None = None
    if settings.journal_file is not None:
        try:
            sink = JournalFile(Path(settings.journal_file), settings.journal_file_bytes)
        except OSError as error:
            raise SettingsError([f"journal_file {settings.journal_file}: {error}"]) from error
    return Journal(settings.journal_bytes, sink), sink


def end_journal(core: Core, settings: EngineSettings, engine: str, *, failed: bool) -> None:
    """Closes the journal's file, and keeps the journal of an engine thread that ``failed``."""
    if core.journal_file is not None:
        if core.loop.scheduler.journal is not None:
            core.loop.scheduler.journal.flush()  # the pass that broke is its last record
        core.journal_file.close()
        if core.journal_file.error is not None:
            log.warning("journal.incomplete", reason=str(core.journal_file.error))
    if not failed:
        return
    try:
        path = keep_journal(core, settings, engine)
    except OSError as error:
        log.error("journal.lost", reason=str(error))
        return
    if path is not None:
        log.error("journal.kept", file=str(path), read_with="headrace replay")


def keep_journal(core: Core, settings: EngineSettings, engine: str) -> Path | None:
    """After the engine thread failed: writes its journal and returns where. None: there is none.

    Raises ``OSError`` where it cannot be written.
    """
    journal = core.loop.scheduler.journal
    if journal is None:
        return None
    folder = Path(settings.journal_dir or tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"headrace-journal-{engine}.jsonl"
    write_journal(journal, path)
    if settings.journal_dir is not None:
        with suppress(OSError):  # another engine that failed may do the same just now
            _forget_oldest(folder)
    return path


def _forget_oldest(folder: Path) -> None:
    """An engine that fails again and again does not fill the disk."""
    kept = sorted(folder.glob("headrace-journal-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    for path in kept[:-JOURNALS_KEPT]:
        path.unlink(missing_ok=True)
