"""Records before they are queued."""

from __future__ import annotations

import pytest
from headrace_contracts.limits import MAX_RECORD_BYTES
from headrace_contracts.pb.queue_pb2 import LogEntry, RequestRecord
from headrace_transport.errors import RecordRejected
from headrace_transport.records import encode, lengths_of
from support.wires import entry, record


def test_record_is_encoded_as_it_is() -> None:
    sent = record("r1", n=3)
    assert RequestRecord.FromString(encode(sent)) == sent


def test_record_without_a_key_may_be_queued() -> None:
    assert encode(record("r1", key_id=""))


def test_record_over_the_limit_is_refused_with_both_numbers() -> None:
    big = record("r1")
    big.cache_salt = b"x" * MAX_RECORD_BYTES
    with pytest.raises(RecordRejected, match=str(MAX_RECORD_BYTES)):
        encode(big)


def test_last_slots_are_usable() -> None:
    top = (1 << 32) - 2
    encode(record("r1", slot=top, n=2))
    with pytest.raises(RecordRejected, match="32 bits"):
        encode(record("r1", slot=top, n=3))


def test_lengths_of_a_resume_entry() -> None:
    both = LogEntry(version=1, choices=[1, 0], firsts=[0, 0], counts=[1, 2], tokens=[7, 8, 9])
    assert lengths_of(3, both) == [2, 1, 0]
    assert lengths_of(1, LogEntry(version=1)) == [0]


@pytest.mark.parametrize("bad", [entry([1], first=1), entry([1], choice=2)])
def test_resume_entry_with_a_gap_is_refused(bad: LogEntry) -> None:
    with pytest.raises(RecordRejected, match="first token"):
        lengths_of(2, bad)
