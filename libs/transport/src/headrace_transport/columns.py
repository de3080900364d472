"""Whether the columns of a frame, or of a log entry, fit each other: where they do not, it is damaged.

``decoded`` asks, so that of what it read no reader believes a part that another does not.
"""

from __future__ import annotations

import re
from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import Frame, LogEntry

REASONS: Final = frozenset(FinishReason)
_FRAME_ID: Final = re.compile(r"(?:[0-9]{1,19}(?:-[0-9]{1,19})?)?")


def columns_fit(record: Frame | LogEntry) -> bool:
    """One of another version may have other columns, which are not for us to judge."""
    if record.version != WIRE_VERSION:
        return True
    return _frame_fits(record) if isinstance(record, Frame) else _entry_fits(record)


def _frame_fits(frame: Frame) -> bool:
    """Why a row ends is not asked: a frame has rows of many requests, and that is one's alone."""
    return (
        len(frame.slots) == len(frame.attempts) == len(frame.firsts) == len(frame.counts)
    ) and sum(frame.counts) == len(frame.tokens)


def _entry_fits(entry: LogEntry) -> bool:
    rows = len(entry.choices)
    return (
        rows == len(entry.firsts) == len(entry.counts)
        and sum(entry.counts) == len(entry.tokens)
        and all(end.row < rows and end.reason in REASONS for end in entry.finishes)
        and _FRAME_ID.fullmatch(entry.frame_id) is not None
    )
