"""Columns that fit each other, and those that do not."""

from __future__ import annotations

import pytest
from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Frame, LogEntry, RowFinish
from headrace_transport.columns import columns_fit
from headrace_transport.replies import decoded

FRAME = Frame(version=1, slots=[7, 9], attempts=[1, 1], firsts=[0, 4], counts=[2, 0], tokens=[5, 6])
ENTRY = LogEntry(
    version=1,
    choices=[0, 1],
    firsts=[0, 4],
    counts=[2, 0],
    tokens=[5, 6],
    frame_id="1795992606000-1",
    finishes=[RowFinish(row=1, reason=FinishReason.STOP.value)],
)


@pytest.mark.parametrize("column", ["slots", "attempts", "firsts", "counts", "tokens"])
def test_a_frame_has_as_much_in_each_column(column: str) -> None:
    assert columns_fit(FRAME)
    made = Frame()
    made.CopyFrom(FRAME)
    getattr(made, column).append(1)
    assert not columns_fit(made)


@pytest.mark.parametrize("column", ["choices", "firsts", "counts", "tokens"])
def test_a_log_entry_has_as_much_in_each_column(column: str) -> None:
    assert columns_fit(ENTRY)
    made = LogEntry()
    made.CopyFrom(ENTRY)
    getattr(made, column).append(1)
    assert not columns_fit(made)


@pytest.mark.parametrize(
    ("row", "reason", "fits"), [(1, 1, True), (2, 1, False), (0, 0, False), (0, 77, False)]
)
def test_an_end_in_a_log_is_of_a_row_and_known(row: int, reason: int, fits: bool) -> None:
    made = LogEntry()
    made.CopyFrom(ENTRY)
    made.finishes[0].CopyFrom(RowFinish.FromString(bytes([0x08, row, 0x10, reason])))
    assert columns_fit(made) is fits


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        ("", True),
        ("0", True),
        ("1795992606000-0", True),
        ("x", False),
        ("1-", False),
        ("9" * 20, False),
    ],
)
def test_a_log_entry_names_a_frame_or_none(name: str, fits: bool) -> None:
    made = LogEntry()
    made.CopyFrom(ENTRY)
    made.frame_id = name
    assert columns_fit(made) is fits


def test_what_does_not_fit_is_read_like_what_cannot_be_decoded() -> None:
    assert decoded(Frame, FRAME.SerializeToString()) == FRAME
    made = Frame()
    made.CopyFrom(FRAME)
    made.tokens.append(1)
    assert decoded(Frame, made.SerializeToString()) == Frame()
    made.version = 2  # whose columns are not ours to judge
    assert decoded(Frame, made.SerializeToString()).version == 2
