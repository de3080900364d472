"""The ring: bounded, of keys only, and a plan that can be read back."""

from __future__ import annotations

from array import array
from itertools import pairwise
from pathlib import Path
from sys import getsizeof

import pytest
from headrace_engine.scheduler.journal import Journal, Segment, unpack
from headrace_engine.scheduler.journal_file import write_journal
from headrace_engine.state.request import MediaSpan
from support.engine import Rig
from support.journals import SECRET, recorded, recorded_slowly


@pytest.mark.rule("journal.bounded")
def test_the_ring_keeps_two_segments_and_the_older_ones_go() -> None:
    journal, rig = recorded(limit_bytes=4000, requests=20)
    assert len(journal.segments) == 2
    first = journal.segments[0]
    assert first.state is not None
    assert 0 < first.passes < rig.scheduler.passes
    # A segment ends with the first pass beyond its half; one pass has little more than this.
    assert all(segment.weight < 2000 + 2000 for segment in journal.segments)


@pytest.mark.rule("journal.bounded")
def test_what_comes_while_a_snapshot_is_taken_is_bounded_too() -> None:
    half = 20_000
    journal = Journal(2 * half, blocks_a_pass=1)
    rig = recorded_slowly(journal, 150)
    assert rig.scheduler.passes > 150
    assert len(journal.segments) == 2
    # Half, a quarter of it more, and what one pass adds.
    assert all(segment.weight < half + half // 4 + 2000 for segment in journal.segments)


@pytest.mark.rule("journal.bounded")
def test_a_request_with_many_images_weighs_what_its_record_holds() -> None:
    journal = Journal(1 << 30)
    rig = Rig(journal=journal, session_tokens=4000, batch_tokens=4000, pool_blocks=1000)
    rig.push([1] * 3000, 1, media=tuple(MediaSpan(i, i + 1, b"") for i in range(0, 3000, 2)))
    rig.step()
    record = journal.segments[-1].records[0]
    held = sum(getsizeof(item) + sum(map(getsizeof, item)) for item in record[2].media)
    assert journal.segments[-1].weight > held


@pytest.mark.rule("journal.bounded")
def test_what_the_ring_lets_go_is_freed_a_little_in_each_pass() -> None:
    most = 20
    journal = Journal(20_000, blocks_a_pass=most)
    rig = Rig(journal=journal, phases=1, session_tokens=600, pool_blocks=200)
    rig.push([1, 2, 3], 400)
    sizes: dict[int, list[int]] = {}
    known: list[Segment] = []
    for _ in range(350):
        rig.step()
        for segment in journal.segments:
            if not any(segment is other for other in known):
                known.append(segment)
        for at, segment in enumerate(known):
            sizes.setdefault(at, []).append(
                len(segment.records) + sum(len(part) for part in segment.parts)
            )
    assert len(known) > 4
    for at in range(len(known) - 3):
        assert max(sizes[at]) > 2 * most
        assert all(before - after <= most for before, after in pairwise(sizes[at])), "at once"
        assert not sizes[at][-1]
    assert all(segment.records for segment in journal.segments)


@pytest.mark.rule("journal.keys-only")
def test_neither_the_ring_nor_its_file_holds_tokens_or_salts(tmp_path: Path) -> None:
    journal, _ = recorded(limit_bytes=4000)
    write_journal(journal, tmp_path / "j")
    text = (tmp_path / "j").read_text()
    assert f"{SECRET},{SECRET}" not in text
    assert SECRET.to_bytes(4, "little").hex() * 2 not in text
    assert b"pepper".hex() not in text
    assert (tmp_path / "j").stat().st_mode & 0o077 == 0
    kinds = {record[0] for segment in journal.segments for record in segment.records}
    assert kinds == {"a", "e", "r", "p", "d", "k"} or kinds == {"e", "r", "p", "d", "k"}


def test_without_a_journal_nothing_is_kept() -> None:
    rig = Rig()
    rig.push([1, 2, 3], 2)
    rig.run()
    assert rig.scheduler.journal is None
    assert rig.scheduler.pool.named is None


def test_a_pass_that_breaks_leaves_its_beginning_in_the_ring() -> None:
    journal = Journal()
    rig = Rig(journal=journal)
    rig.push([1, 2, 3], 2)
    rig.step()
    rig.scheduler.residents.columns.inflight[:] = 7
    rig.scheduler.objects.pages.alloc(0)
    journal.turn(rig.scheduler.passes, 5.0)
    journal.flush()
    assert journal.segments[-1].records[-1] == ("s", 5.0)


def test_a_plan_is_read_as_it_was_packed() -> None:
    journal, _ = recorded()
    plans = [r for r in journal.segments[0].records if r[0] == "p"]
    views = [unpack(record[4], ()) for record in plans]
    assert [view.pass_id for view in views] == list(range(1, len(plans) + 1))
    assert any(view.evicted for view in views)
    assert any(view.reasons for view in views)
    assert any("starts" in line for view in views for line in view.lines())


@pytest.mark.parametrize("numbers", [[1], [1, 5, 0], [1, 0, 0, 0, 0, 9], [1, -1, 0, 0, 0]])
def test_numbers_that_are_no_plan_are_refused(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="numbers"):
        unpack(array("q", numbers).tobytes(), ())
