"""Errors say whose move is next, with the numbers."""

from __future__ import annotations

from headrace_contracts.codes import Code
from headrace_transport.errors import ForeignVersion, QueueFull, TransportError


def test_a_foreign_version_names_what_it_is_of_and_both_numbers() -> None:
    error = ForeignVersion("the resume log of r1", version=7)
    assert isinstance(error, TransportError)
    assert (error.version, error.code) == (7, Code.INTERNAL)
    assert str(error) == "the resume log of r1 has wire version 7, and 1 is read here"


def test_what_has_no_version_is_damaged() -> None:
    assert (
        str(ForeignVersion("the resume log of r1", version=0)) == "the resume log of r1 is damaged"
    )


def test_a_full_queue_has_its_depth_and_limit() -> None:
    error = QueueFull(depth=9, limit=8)
    assert (error.code, error.depth, error.limit) == (Code.QUEUE_FULL, 9, 8)
