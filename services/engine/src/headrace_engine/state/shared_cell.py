"""SharedCell: the engine's newest snapshot in memory that two processes map.

Owner    the engine thread puts; the io process gets
Writes   its memory
Never    waits; shows a mixture of two snapshots
Rules    threads.mailboxes-only, metrics.one-snapshot
Next     headrace_engine.state.metrics

The memory is anonymous (``memfd_create``): it needs no ``/dev/shm`` and no writable file system.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Final, get_type_hints
from zlib import crc32

from headrace_engine.state.mailbox import NewestCell
from headrace_engine.state.metrics import CacheStats, ScheduleMetrics, WaitingChoice

_BYTES: Final = 1 << 16
_HEADER: Final = struct.Struct("<II")
"""Bytes that follow, and their checksum: a reader that meets a writer reads again."""
_TRIES: Final = 1000
_REST: Final = ("waiting_by_reason", "finished", "waits", "cache")
"""Fields that are not one number."""
_TYPES: Final[Mapping[object, str]] = {int: "q", float: "d", bool: "?"}
_NUMBERS: Final = {
    name: _TYPES[kind]
    for name, kind in get_type_hints(ScheduleMetrics).items()
    if name not in _REST
}
_PACKED: Final = struct.Struct("<" + "".join(_NUMBERS.values()))
_take_numbers = attrgetter(*_NUMBERS)


def shared_memory() -> int:
    """The descriptor of memory for one cell; it passes to a child that is told so."""
    descriptor = os.memfd_create("headrace-snapshot")
    os.ftruncate(descriptor, _BYTES)
    return descriptor


class SharedCell(NewestCell[ScheduleMetrics]):
    """The writer's end: a cell of this process that is also seen in the other."""

    __slots__ = ("_memory", "_said", "_text")

    def __init__(self, value: ScheduleMetrics, descriptor: int) -> None:
        super().__init__(value)
        self._memory = mmap.mmap(descriptor, _BYTES)
        self._said: tuple[object, ...] = ()
        """What ``_text`` says."""
        self._text = b""
        self.put(value)

    def put(self, value: ScheduleMetrics) -> None:
        """Replaces the value. A few microseconds: most of it seldom changes from pass to pass."""
        super().put(value)
        rest = (value.waiting_by_reason, value.finished, value.waits, value.cache)
        if rest != self._said:
            # Copies: a mapping that is changed in place must not look unchanged.
            self._said = (dict(rest[0]), dict(rest[1]), rest[2], rest[3])
            self._text = _packed_rest(value)
        data = _PACKED.pack(*_take_numbers(value)) + self._text
        self._memory[_HEADER.size : _HEADER.size + len(data)] = data
        self._memory[: _HEADER.size] = _HEADER.pack(len(data), crc32(data))


class SharedReader:
    """The reader's end."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _BYTES, prot=mmap.PROT_READ)
        self._header = b""
        self._newest = ScheduleMetrics()

    def get(self) -> ScheduleMetrics:
        """The newest value; before the first an empty one."""
        for _ in range(_TRIES):
            header = self._memory[: _HEADER.size]
            if header == self._header:
                break
            size, checksum = _HEADER.unpack(header)
            data = self._memory[_HEADER.size : _HEADER.size + size]
            if size and crc32(data) == checksum:
                self._header, self._newest = header, _unpacked(data)
                break
        return self._newest  # a writer that died at work leaves the one before


def _packed_rest(value: ScheduleMetrics) -> bytes:
    waits = [(waiting.handle, waiting.reason, waiting.detail) for waiting in value.waits]
    cache = [getattr(value.cache, field.name) for field in fields(CacheStats)]
    text = json.dumps([dict(value.waiting_by_reason), dict(value.finished), waits, cache])
    if len(text) + _HEADER.size + _PACKED.size > _BYTES:  # numbers matter more than examples
        text = json.dumps([dict(value.waiting_by_reason), dict(value.finished), [], cache])
    return text.encode()


def _unpacked(data: bytes) -> ScheduleMetrics:
    numbers = _PACKED.unpack_from(data)
    by_reason, finished, waits, cache = json.loads(data[_PACKED.size :])
    return ScheduleMetrics(
        **dict(zip(_NUMBERS, numbers, strict=True)),
        waiting_by_reason=by_reason,
        finished=finished,
        waits=[WaitingChoice(*waiting) for waiting in waits],
        cache=CacheStats(*cache),
    )
