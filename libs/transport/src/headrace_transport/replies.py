"""Replies of the server, narrowed: what is not of the expected shape is ``CommandFailed``."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError
from headrace_contracts.limits import MAX_CHOICES
from headrace_contracts.pb.queue_pb2 import Control, Fence, Frame, LogEntry, RequestRecord

from headrace_transport.columns import columns_fit
from headrace_transport.errors import CommandFailed

Reply: TypeAlias = "bytes | int | float | list[Reply] | None"
Argument: TypeAlias = bytes | str | int | float
Versioned = TypeVar("Versioned", Control, Fence, Frame, LogEntry, RequestRecord)
"""Records that say which version wrote them."""


@contextmanager
def readable(what: str) -> Generator[None]:
    """Around the reading of a record: ``CommandFailed`` for one that lacks a field or damages one."""
    try:
        yield
    except (KeyError, ValueError, OverflowError, DecodeError) as error:
        raise CommandFailed(f"{what} cannot be read: {error!r}") from error


def given(reply: Reply | CommandFailed) -> Reply:
    """A reply of several; raises the refusal that came in its place."""
    if isinstance(reply, CommandFailed):
        raise reply
    return reply


def decoded(message: type[Versioned], data: bytes) -> Versioned:
    """A record; an empty one, of version 0, where it cannot be decoded, or its columns do not fit each
    other: whoever asks whether it is of our version refuses it, and counts it as damaged.
    """
    try:
        record = message.FromString(data)
    except DecodeError:
        return message()
    fit = columns_fit(record) if isinstance(record, Frame | LogEntry) else True
    return record if fit else message()


def as_int(reply: Reply) -> int:
    """An integer, or a string of one."""
    if isinstance(reply, int):
        return reply
    if isinstance(reply, bytes):
        with readable("an integer"):
            return int(float(reply))
    raise CommandFailed(f"expected an integer, got {type(reply).__name__}")


def choices_of(text: str) -> int:
    """How many choices a request has. Raises ``ValueError`` for more than any can have."""
    if not 0 <= (n := int(text)) <= MAX_CHOICES:
        raise ValueError(f"n is {n}")
    return n


def as_bytes(reply: Reply) -> bytes:
    """A string of bytes."""
    if isinstance(reply, bytes):
        return reply
    raise CommandFailed(f"expected a string, got {type(reply).__name__}")


def as_text(reply: Reply) -> str:
    """A string of text."""
    try:
        return as_bytes(reply).decode()
    except UnicodeDecodeError as error:
        raise CommandFailed(f"expected text: {error}") from error


def as_list(reply: Reply) -> list[Reply]:
    """An array; an absent one is empty."""
    if reply is None:
        return []
    if isinstance(reply, list):
        return reply
    raise CommandFailed(f"expected an array, got {type(reply).__name__}")


def as_fields(reply: Reply) -> dict[str, bytes]:
    """An array of field, value, field, value."""
    flat = as_list(reply)
    return {
        # a name that is no text is no field of ours
        as_bytes(flat[i]).decode(errors="replace"): as_bytes(flat[i + 1])
        for i in range(0, len(flat) - 1, 2)
    }


def as_entries(reply: Reply) -> list[tuple[str, dict[str, bytes]]]:
    """Entries of a stream: id and fields."""
    found: list[tuple[str, dict[str, bytes]]] = []
    for entry in as_list(reply):
        name, fields = as_list(entry)
        found.append((as_text(name), as_fields(fields)))
    return found
