"""Checks of records before they are queued, and the resume entry's lengths."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_contracts.keys import BANDS
from headrace_contracts.limits import MAX_CHOICES, MAX_RECORD_BYTES, WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import LogEntry, RequestRecord

from headrace_transport.errors import ForeignVersion, RecordRejected
from headrace_transport.foreign import Foreign
from headrace_transport.names import check_model, check_name, check_process
from headrace_transport.takeover import from_log

_SLOTS = 1 << 32


def encode(record: RequestRecord) -> bytes:
    """The record's bytes; raises ``RecordRejected`` for one that must not be queued."""
    check_name("a request id", record.id)
    check_name("a tenant", record.tenant)
    check_process("a gateway", record.gateway)
    check_model(record.model)
    if record.key_id:
        check_name("a key id", record.key_id)
    if record.version != WIRE_VERSION:
        raise RecordRejected(f"a record's version must be {WIRE_VERSION}, not {record.version}")
    if not 1 <= record.n <= MAX_CHOICES:
        raise RecordRejected(f"n must be 1 to {MAX_CHOICES}, not {record.n}")
    if record.slot + record.n > _SLOTS:
        raise RecordRejected(f"slots {record.slot}..{record.slot + record.n} exceed 32 bits")
    if record.band >= BANDS:
        raise RecordRejected(f"a band must be 0 to {BANDS - 1}, not {record.band}")
    data = record.SerializeToString()
    if len(data) > MAX_RECORD_BYTES:
        raise RecordRejected(f"the record has {len(data)} bytes; the limit is {MAX_RECORD_BYTES}")
    return data


def check_log(request: str, entries: Sequence[tuple[str, LogEntry]], foreign: Foreign) -> None:
    """Raises ``ForeignVersion`` for a resume log that is not all of our version."""
    for _, entry in entries:
        if not foreign.is_ours("log", entry.version):
            raise ForeignVersion(f"the resume log of {request}", version=entry.version)


def lengths_of(n: int, entry: LogEntry) -> list[int]:
    """Tokens per choice that a resume entry holds; raises ``RecordRejected`` for gaps in it."""
    held = [len(tokens) for tokens in from_log(n, [entry]).tokens]
    if sum(held) != len(entry.tokens) or any(choice >= n for choice in entry.choices):
        raise RecordRejected("the resume entry does not hold each choice from its first token on")
    return held
