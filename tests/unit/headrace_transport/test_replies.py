"""Replies, narrowed."""

from __future__ import annotations

import pytest
from headrace_contracts.pb.queue_pb2 import LogEntry
from headrace_transport.errors import CommandFailed
from headrace_transport.replies import (
    Reply,
    as_bytes,
    as_entries,
    as_fields,
    as_int,
    as_list,
    as_text,
    decoded,
    given,
)


def test_integers_come_in_several_shapes() -> None:
    assert as_int(3) == 3
    assert as_int(b"17") == 17
    assert as_int(b"1.8e3") == 1800


def test_absent_array_is_empty() -> None:
    assert as_list(None) == []
    assert as_fields(None) == {}


def test_of_several_replies_one_may_be_a_refusal() -> None:
    assert given(b"x") == b"x"
    with pytest.raises(CommandFailed, match="WRONGTYPE"):
        given(CommandFailed("WRONGTYPE"))


def test_what_cannot_be_decoded_has_no_version() -> None:
    assert decoded(LogEntry, LogEntry(version=1, attempt=2).SerializeToString()).attempt == 2
    assert decoded(LogEntry, b"\xff\x00junk") == LogEntry()


def test_entries_are_id_and_fields() -> None:
    reply: Reply = [[b"1-0", [b"a", b"\xff", b"b", b""]], [b"1-1", []]]
    assert as_entries(reply) == [("1-0", {"a": b"\xff", "b": b""}), ("1-1", {})]


def test_a_field_whose_name_is_no_text_is_one_that_nobody_knows() -> None:
    assert as_fields([b"\xff", b"1", b"a", b"2"]) == {"\ufffd": b"1", "a": b"2"}


def test_what_is_no_number_and_no_text_is_a_failure() -> None:
    with pytest.raises(CommandFailed):
        as_int(b"many")
    with pytest.raises(CommandFailed):
        as_int(b"inf")
    with pytest.raises(CommandFailed):
        as_text(b"\xff")


def test_other_shapes_are_a_failure_not_a_guess() -> None:
    for call in (as_int, as_bytes, as_text):
        with pytest.raises(CommandFailed):
            call(None)
        with pytest.raises(CommandFailed):
            call([b"x"])
    with pytest.raises(CommandFailed):
        as_list(b"x")
