"""``headrace replay``: the same plans, the first difference, another setting, bad files."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from headrace_cli import replay
from headrace_cli.errors import CommandFailed
from headrace_cli.main import app
from headrace_engine.scheduler.journal_file import write_journal
from headrace_engine.scheduler.settings import SchedulerSettings
from support.journals import recorded
from typer.testing import CliRunner


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    ring, _ = recorded(requests=12, batch_tokens=32, prefill_chunk_tokens=8)
    write_journal(ring, tmp_path / "journal.jsonl")
    return tmp_path / "journal.jsonl"


def forged(path: Path) -> None:
    """Takes another hash for one plan, and closes the file again as if it were whole."""
    lines = path.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith('["p"') and i > 20)
    record = json.loads(lines[at])
    record[2] = "00" * 8
    lines[at] = json.dumps(record, separators=(",", ":")) + "\n"
    digest = blake2b("".join(lines[:-1]).encode(), digest_size=16).hexdigest()
    lines[-1] = json.dumps(["z", len(lines) - 2, digest]) + "\n"
    path.write_text("".join(lines))


def test_a_journal_replays_and_says_how_much(journal: Path) -> None:
    result = CliRunner().invoke(app, ["replay", str(journal)])
    assert result.exit_code == 0
    assert "from the engine's start" in result.stdout
    assert "plans are the same" in result.stdout


def test_the_first_difference_is_shown_and_is_the_exit_code(journal: Path) -> None:
    forged(journal)
    result = CliRunner().invoke(app, ["replay", str(journal)])
    assert result.exit_code == 1
    assert "is the first that differs" in result.stdout


def test_two_different_plans_are_shown_side_by_side(journal: Path) -> None:
    (segment,) = replay.read(journal, partial=False)
    at = next(i for i, r in enumerate(segment.records) if r[0] == "a")
    kind, now_s, arrival = segment.records[at]
    object.__setattr__(arrival, "limit", arrival.limit - 1)
    segment.records[at] = (kind, now_s, arrival)
    result = replay.replayed(segment, journal)
    assert result.difference is not None
    text = replay.differing(result.difference)
    assert "--- recorded" in text
    assert "-decodes" in text
    assert "+decodes" in text


def test_another_setting_is_compared_in_a_table(journal: Path) -> None:
    options = ["replay", str(journal), "--set", "prefill_chunk_tokens=4", "--set", "max_batch=1"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 0, result.output
    passes = next(line for line in result.stdout.splitlines() if line.startswith("passes"))
    _, before, after, difference = passes.split()
    assert int(after) > int(before)
    assert difference.startswith("+")
    for name in ("ttft_ms_p50", "preemptions", "cache_hit_share"):
        assert name in result.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nothing=1", "not NAME=VALUE"),
        ("max_batch", "not NAME=VALUE"),
        ("max_batch=x", "not a value like"),
        ("prefix_cache=7", "not a value like"),
        ("max_batch=0", "cannot work: max_batch is 0"),
    ],
)
def test_a_change_that_means_nothing_is_refused(change: str, message: str) -> None:
    with pytest.raises(CommandFailed, match=message):
        replay.with_changes(SchedulerSettings(), [change])


def test_changes_have_the_type_of_the_setting() -> None:
    changed = replay.with_changes(
        SchedulerSettings(), ["prefix_cache=off", "max_batch=3", "ageing_s=2.5"]
    )
    assert (changed.prefix_cache, changed.max_batch, changed.ageing_s) == (False, 3, 2.5)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe\n")
    for path, message in ((tmp_path / "x", "no journal"), (tmp_path / "y", "No such file")):
        with pytest.raises(CommandFailed, match=message) as refused:
            replay.read(path, partial=False)
        assert not refused.value.hint


def test_a_truncated_journal_is_refused_with_the_way_out(journal: Path) -> None:
    journal.write_text(journal.read_text()[:-30])
    with pytest.raises(CommandFailed, match="cut off") as refused:
        replay.read(journal, partial=False)
    assert "--partial" in refused.value.hint
    assert replay.run(journal, changes=[], partial=True)


def test_where_nothing_of_a_journal_is_whole_no_way_out_is_offered(journal: Path) -> None:
    journal.write_text(journal.read_text()[:100])
    for partial in (False, True):
        with pytest.raises(CommandFailed, match="cut off in line 1") as refused:
            replay.read(journal, partial=partial)
        assert not refused.value.hint


def test_segments_before_one_that_was_cut_off_in_its_first_line_are_whole(journal: Path) -> None:
    text = journal.read_text()
    journal.write_text(text + text[:100])
    with pytest.raises(CommandFailed, match="cut off") as refused:
        replay.read(journal, partial=False)
    assert refused.value.hint
    assert len(replay.read(journal, partial=True)) == 1
