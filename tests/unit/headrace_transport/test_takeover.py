"""What earlier attempts delivered, from log and frames."""

from __future__ import annotations

from headrace_contracts.pb.queue_pb2 import Fence, Frame, LogEntry, RowFinish
from headrace_transport.interface import FIRST_FRAME, FrameId, OutEntry
from headrace_transport.takeover import (
    Delivered,
    add_frames,
    ended_entries,
    frame_order,
    frames_from,
    from_log,
    missing_entry,
)
from hypothesis import given
from hypothesis import strategies as st
from support.wires import entry, frame

STOP = RowFinish(row=0, reason="FINISH_REASON_STOP")


def out(*items: Frame | Fence) -> list[OutEntry]:
    return [OutEntry(id=FrameId(f"{i + 1}-0"), item=item) for i, item in enumerate(items)]


def fence(attempt: int, slot: int = 10) -> Fence:
    return Fence(version=1, id="r1", slot=slot, n=1, attempt=attempt)


def recovered(*items: Frame | Fence, log: tuple[LogEntry, ...] = (), before: int = 9) -> list[int]:
    found = from_log(1, log)
    oldest = max((each.attempt for each in log), default=0)
    add_frames(found, out(*items), slot=10, attempt=oldest, before=before)
    return found.tokens[0]


def test_frames_continue_the_log() -> None:
    assert recovered(frame([2, 3], first=1), frame([4], first=3), log=(entry([1]),)) == [1, 2, 3, 4]


def test_rows_that_the_log_holds_are_not_taken_twice() -> None:
    assert recovered(frame([1, 2]), frame([3], first=2), log=(entry([1, 2]),)) == [1, 2, 3]
    assert recovered(frame([2, 3], first=1), log=(entry([1, 2]),)) == [1, 2, 3]


def test_row_beyond_a_gap_is_not_believed() -> None:
    assert recovered(frame([1]), frame([3], first=2)) == [1]


def test_first_delivery_of_a_token_wins() -> None:
    assert recovered(frame([1, 2]), frame([9, 9], first=1, attempt=2)) == [1, 2, 9]


def test_stale_rows_behind_a_fence_are_dropped() -> None:
    assert recovered(
        frame([1]), fence(2), frame([66], first=1), frame([2], first=1, attempt=2)
    ) == [1, 2]


def test_fence_of_another_slot_is_another_request() -> None:
    assert recovered(frame([1]), fence(2, slot=11), frame([2], first=1)) == [1, 2]


def test_rows_older_than_the_logs_attempt_are_dropped() -> None:
    log = (entry([1], attempt=1), entry([2], first=1, attempt=2))
    assert recovered(frame([66], first=2, attempt=1), frame([3], first=2, attempt=2), log=log) == [
        1,
        2,
        3,
    ]


def test_rows_of_the_new_attempt_are_not_the_past() -> None:
    assert recovered(frame([1]), frame([2], first=1, attempt=3), before=3) == [1]


def test_end_stops_its_choice() -> None:
    found = from_log(1, [])
    add_frames(
        found,
        out(frame([1], finish=STOP), frame([2], first=1)),
        slot=10,
        attempt=0,
        before=9,
    )
    assert found.tokens == [[1]]
    assert found.complete
    ended = ended_entries(found, attempt=4)
    assert (list(ended[0].firsts), list(ended[0].counts)) == ([1], [0])
    assert ended[0].attempt == 4


def test_log_tells_tokens_and_ends() -> None:
    last = entry([5], choice=1)
    last.finishes.append(STOP)
    found = from_log(2, [entry([1]), last, entry([2], first=1)])
    assert found.tokens == [[1, 2], [5]]
    assert set(found.ends) == {1}
    assert (found.logged, found.logged_ends, found.complete) == ([2, 1], {1}, False)


def test_missing_entry_brings_the_log_up_to_what_was_delivered() -> None:
    found = from_log(3, [entry([1]), entry([5], choice=1)])
    found.put(0, 1, [2, 3])
    found.ends[1] = STOP
    missing = missing_entry(found, attempt=2, frame=FrameId("7-0"))
    assert missing is not None
    assert list(missing.choices) == [0, 1]
    assert (list(missing.firsts), list(missing.counts)) == ([1, 1], [2, 0])
    assert list(missing.tokens) == [2, 3]
    assert (missing.finishes[0].row, missing.frame_id) == (1, "7-0")
    assert missing_entry(from_log(1, [entry([1])]), attempt=2, frame=FIRST_FRAME) is None


def test_reading_starts_where_no_choice_can_lack_a_frame() -> None:
    assert frames_from(1, []) == FIRST_FRAME
    assert frames_from(1, [entry([1], frame_id="5-0"), entry([2], first=1, frame_id="10-2")]) == (
        "10-2"
    )
    both = [entry([1], frame_id="5-0"), entry([1], choice=1, frame_id="10-0")]
    assert frames_from(2, both) == "5-0"
    assert frames_from(3, both) == FIRST_FRAME
    assert frames_from(1, [entry([1])]) == FIRST_FRAME


def test_frame_ids_are_ordered_as_numbers() -> None:
    assert sorted(["10-0", "9-11", "9-2"], key=frame_order) == ["9-2", "9-11", "10-0"]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=20))
def test_any_rows_of_one_history_give_a_prefix_of_it(rows: list[tuple[int, int]]) -> None:
    history = list(range(50, 80))
    found = Delivered(tokens=[[]])
    for first, count in rows:
        found.put(0, first, history[first : first + count])
    assert found.tokens[0] == history[: len(found.tokens[0])]
