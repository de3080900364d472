"""Journals as files: what was written is read, and nothing else is."""

from __future__ import annotations

import os
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.journal import Journal
from headrace_engine.scheduler.journal_file import JournalFile, read_journal, write_journal
from headrace_engine.scheduler.journal_replay import Replayer
from support.engine import Rig
from support.journals import SECRET, recorded, recorded_slowly


def written(path: Path, limit_bytes: int = 4000) -> list[str]:
    journal, _ = recorded(limit_bytes=limit_bytes)
    write_journal(journal, path)
    return path.read_text().splitlines(keepends=True)


@pytest.mark.rule("journal.replays")
def test_a_file_replays_like_the_ring(tmp_path: Path) -> None:
    segments = read_journal(written(tmp_path / "j"))
    assert len(segments) == 2
    for segment in segments:
        result = Replayer(segment).run()
        assert result.difference is None
        assert result.passes == sum(record[0] == "p" for record in segment.records)


@pytest.mark.rule("journal.refuses-what-is-not-whole")
def test_a_truncated_file_is_refused_wherever_it_is_cut(tmp_path: Path) -> None:
    lines = written(tmp_path / "j", 1 << 30)
    for kept in range(len(lines)):
        with pytest.raises(JournalRejected, match=r"cut off|empty"):
            read_journal(lines[:kept])
    with pytest.raises(JournalRejected, match=f"cut off in line {len(lines)}"):
        read_journal([*lines[:-1], lines[-1][:-5]])


@pytest.mark.rule("journal.refuses-what-is-not-whole")
def test_what_is_whole_of_a_truncated_file_can_be_asked_for(tmp_path: Path) -> None:
    lines = written(tmp_path / "j", 1 << 30)
    (segment,) = read_journal([*lines[:40], lines[40][:9]], partial=True)
    assert len(segment.records) == 39
    assert Replayer(segment).run().difference is None


@pytest.mark.rule("journal.refuses-what-is-not-whole")
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello\n"], "line 1 is not JSON"),
        (['{"a": 1}\n'], "no journal of Headrace"),
        (["[1, 2]\n"], "no journal of Headrace"),
        (['{"headrace_journal": 99}\n'], "version 99"),
        (['{"headrace_journal": 3}\n'], "not the beginning"),
        ([], "empty"),
    ],
)
def test_a_foreign_file_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(JournalRejected, match=message):
        read_journal(lines)


@pytest.mark.rule("journal.refuses-what-is-not-whole")
def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    lines = written(tmp_path / "j", 1 << 30)
    with pytest.raises(JournalRejected, match="changed"):
        read_journal([*lines[:5], *lines[6:]])
    with pytest.raises(JournalRejected, match="line 6 is no record"):
        read_journal([*lines[:5], '["q"]\n', *lines[6:]])


@pytest.mark.rule("journal.bounded")
@pytest.mark.rule("journal.keys-only")
def test_a_sink_has_tokens_and_two_files_that_replay(tmp_path: Path) -> None:
    sink = JournalFile(tmp_path / "live", 20_000)
    rig = Rig(journal=Journal(1 << 30, sink))
    for i in range(20):
        rig.push([SECRET] * 6 + [i], 6)
        rig.run()
    sink.close()
    assert sink.error is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "live.1"]
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert len(text) < 20_000
        assert path.stat().st_mode & 0o077 == 0
        assert f"[{SECRET},{SECRET}" in text
        (segment,) = read_journal(text.splitlines(keepends=True))
        assert Replayer(segment).run().difference is None


def filled(tmp_path: Path) -> tuple[Rig, JournalFile]:
    """An engine with 400 cached blocks, in a pass in which the second segment began."""
    sink = JournalFile(tmp_path / "live", 60_000)
    rig = Rig(
        journal=Journal(1 << 30, sink), pool_blocks=500, session_tokens=1100, batch_tokens=1200
    )
    rig.push([SECRET, *range(97)] * 8, 400)
    rig.push([*range(90, 97), SECRET] * 100, 4)
    while not (tmp_path / "live.next").exists():
        rig.step()
    return rig, sink


@pytest.mark.rule("journal.snapshot-is-whole")
def test_the_next_file_takes_passes_to_begin_and_records_go_on_in_the_one_before(
    tmp_path: Path,
) -> None:
    rig, sink = filled(tmp_path)
    began = rig.scheduler.passes
    while (tmp_path / "live.next").exists():
        assert not (tmp_path / "live.1").exists(), "what is newest can be replayed all the time"
        rig.step()
    stood = rig.scheduler.passes
    for _ in range(10):
        rig.step()
    sink.close()
    assert sink.error is None
    assert stood - began > 10, "a state of 400 blocks was written at once"
    (before,) = read_journal((tmp_path / "live.1").read_text().splitlines(keepends=True))
    (newest,) = read_journal((tmp_path / "live").read_text().splitlines(keepends=True))
    assert newest.passes + 1 == began, "the state is of the pass in which it began"
    for segment, last in ((before, stood - 1), (newest, stood + 10)):
        result = Replayer(segment).run()
        assert result.difference is None
        assert segment.passes + result.passes == last


@pytest.mark.rule("journal.bounded")
@pytest.mark.parametrize("limit_bytes", [800_000, 1_600_000])
def test_records_that_come_faster_than_a_part_is_written_do_not_hold_the_next_file_up(
    tmp_path: Path, limit_bytes: int
) -> None:
    sink = JournalFile(tmp_path / "live", limit_bytes)
    rig = Rig(
        journal=Journal(1 << 30, sink), pool_blocks=1000, session_tokens=4000, batch_tokens=4100
    )
    turns = largest = 0
    while turns < 3:
        coming = (tmp_path / "live.next").exists()
        rig.push([SECRET] * 3600, 1)  # 80 KB of a file
        rig.run()
        turns += coming and not (tmp_path / "live.next").exists()
        largest = max(largest, sum(path.stat().st_size for path in tmp_path.iterdir()))
        assert largest < 2.5 * limit_bytes, "more than two halves and their snapshots"
    sink.close()
    assert sink.error is None
    for name in ("live", "live.1"):
        (segment,) = read_journal((tmp_path / name).read_text().splitlines(keepends=True))
        assert Replayer(segment).run().difference is None


def test_what_a_killed_engine_left_of_a_next_file_is_erased_at_the_next_start(
    tmp_path: Path,
) -> None:
    for name in ("live", "live.next"):
        (tmp_path / name).write_text("half a line, with token ids")
    sink = JournalFile(tmp_path / "live", 60_000)
    Rig(journal=Journal(1 << 30, sink))
    sink.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live", "live.1"]


@pytest.mark.rule("journal.snapshot-is-whole")
def test_a_next_file_that_does_not_stand_yet_is_left_out_at_the_end(tmp_path: Path) -> None:
    rig, sink = filled(tmp_path)
    assert not sink.full, "another would be begun beside it"
    rig.step()
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
    (segment,) = read_journal((tmp_path / "live").read_text().splitlines(keepends=True))
    assert Replayer(segment).run().passes == rig.scheduler.passes


@pytest.mark.rule("journal.bounded")
def test_a_file_is_bounded_too_while_a_snapshot_is_taken_and_written(tmp_path: Path) -> None:
    half = 30_000
    sink = JournalFile(tmp_path / "live", 2 * half)
    recorded_slowly(Journal(1 << 30, sink, blocks_a_pass=1), 250)
    sink.close()
    assert sink.error is None
    for name in ("live", "live.1"):
        text = (tmp_path / name).read_text()
        records = len(text) - text.index("\n")
        assert records < half + 4000, "half, and what a pass adds"


@contextmanager
def full_disk(most_bytes: int) -> Generator[None]:
    """No file of this process grows beyond that: the kernel refuses as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_journal_that_could_not_be_written_whole_leaves_nothing_and_the_one_before(
    tmp_path: Path,
) -> None:
    before = written(tmp_path / "j")
    journal, _ = recorded(limit_bytes=1 << 30)
    with full_disk(1000), pytest.raises(OSError, match="too large"):
        write_journal(journal, tmp_path / "j")
    assert [path.name for path in tmp_path.iterdir()] == ["j"]
    assert (tmp_path / "j").read_text() == "".join(before)


def test_a_link_where_a_journal_is_written_leads_nowhere(tmp_path: Path) -> None:
    """Its name can be guessed, and the folder for temporary files is everybody's."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f"j.{os.getpid()}").symlink_to(victim)
    written(tmp_path / "j")
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "victim"]
    assert not (tmp_path / "j").is_symlink()


def test_a_full_disk_leaves_no_next_file(tmp_path: Path) -> None:
    rig, sink = filled(tmp_path)
    while not (tmp_path / "live.next").stat().st_size:
        rig.step()
    for _ in range(
        60
    ):  # what one pass writes into the file before, while the next has a part in hand
        rig.push([SECRET] * 100, 1)
    with full_disk(1):
        rig.step()
    assert sink.error is not None
    rig.run()
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_a_disk_that_fails_while_the_next_file_begins_ends_both(tmp_path: Path) -> None:
    rig, sink = filled(tmp_path)
    (tmp_path / "live.next").unlink()
    while sink.error is None:
        rig.step()
    rig.run()
    assert isinstance(sink.error, FileNotFoundError)
    assert not (tmp_path / "live.next").exists()


def test_a_disk_that_fails_ends_the_file_and_not_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    sink = JournalFile(folder / "live", 1 << 20)
    (folder / "live").unlink()
    folder.rmdir()
    rig = Rig(journal=Journal(1 << 30, sink))
    handle = rig.push([1, 2, 3], 4)
    rig.run()
    rig.assert_true(handle)
    assert isinstance(sink.error, FileNotFoundError)
    sink.close()


def test_a_file_that_cannot_be_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        JournalFile(tmp_path / "no" / "live", 1 << 20)


@pytest.mark.rule("journal.replays")
def test_a_journal_is_written_a_second_time_as_the_first(tmp_path: Path) -> None:
    """An engine that fails writes the segment whose first line stands in its file already."""
    journal = Journal(8000)
    rig = Rig(journal=journal, max_batch=120, max_waiting=120, pool_blocks=2000, batch_tokens=512)
    for i in range(200):
        rig.push([i, 1, 2], 40, tenant=str(i))
    while rig.scheduler.passes < 30 or journal.segments[-1].passes < 10:
        rig.step()
    write_journal(journal, tmp_path / "first")
    write_journal(journal, tmp_path / "second")
    state = journal.segments[-1].state  # from here on the segment keeps it
    assert state is not None
    write_journal(journal, tmp_path / "third")
    write_journal(journal, tmp_path / "fourth")
    first = (tmp_path / "first").read_text()
    assert min(len(state["decoding"]), len(state["tenants"])) > 50, "no list takes two parts"
    for name in ("second", "third", "fourth"):
        assert (tmp_path / name).read_text() == first


@pytest.mark.rule("journal.bounded")
def test_a_snapshot_that_the_ring_lets_go_is_still_written(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    sink = JournalFile(path, 2_000_000)
    journal = Journal(4000, sink)
    rig = Rig(journal=journal, phases=1, session_tokens=600, pool_blocks=2000, audit=False)
    turns = most = 0  # of the ring, while one first line is written
    begun, which, newest = tmp_path / "journal.next", 0, journal.segments[-1]
    for i in range(120):
        rig.push([i, *(j % 90 for j in range(500))], 3)
        for _ in range(6):
            rig.step()
            if which != (which := begun.stat().st_ino if begun.exists() else 0):
                turns = 0
            if journal.segments[-1] is not newest:
                newest, turns = journal.segments[-1], turns + 1
                most = max(most, turns if which else 0)
    assert most > 3, "the ring never lets go what is being written"
    assert sink.error is None
    sink.close()
    for file in (path, tmp_path / "journal.1"):
        (segment,) = read_journal(file.read_text().splitlines(keepends=True))
        assert segment.state is not None
        assert Replayer(segment).run().difference is None
