"""Journals as files: lines of JSON, each segment closed by a line that proves it is whole.

Owner    whoever writes or reads one; a sink belongs to the engine thread
Writes   files
Never    runs what it reads; believes a file that is cut, changed or of another kind
Rules    journal.refuses-what-is-not-whole, journal.bounded
Next     headrace_engine.scheduler.journal_replay

A segment: ``{"headrace_journal": 3, ...}``, then one array a record, then ``["z", records, digest]``
with the BLAKE2b of every line of the segment before it.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
from headrace_contracts.prefix_key import PrefixKey
from numpy.typing import NDArray

from headrace_engine.errors import JournalRejected
from headrace_engine.scheduler.journal import Arrival, Journal, Origin, Record, Segment, State
from headrace_engine.scheduler.settings import SchedulerSettings

VERSION: Final = 3
_PART: Final = 50
_PART_BYTES: Final = 8192
"""Written in one pass, and a part more, of a first line and of what waits for it: some 100 us."""
_EVENTS: Final = {"a": 3, "e": 6, "x": 3, "r": 2, "p": 5, "d": 2, "c": 2, "k": 2, "l": 2, "s": 2}
"""Kinds of records, and how many elements each has at least."""


def write_journal(journal: Journal, path: Path) -> None:
    """Writes the ring, without token ids. Readable by its owner alone; the file is new or replaced.

    The engine thread must have ended, or be the caller. Leaves nothing behind of what could
    not be written whole.
    """
    journal.flush()
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    # Of an engine that was killed at this; or a link, as anybody may put one into a temporary folder.
    fresh.unlink(missing_ok=True)
    try:
        with _create(fresh, os.O_EXCL) as file:
            for segment in journal.segments:
                writer = _SegmentWriter(file)
                for _ in writer.head(segment):
                    pass
                for record in segment.records:
                    writer.put(_line(record, None))
                writer.end()
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


class JournalFile:
    """A sink: every record as it happens, with token ids. Two files of half the size each.

    ``path`` has the newest segment, ``path.1`` the one before it. The next segment's first line takes
    many passes to write; until it stands, in ``path.next``, records go on in the segment before, so
    that ``path`` is one that can be replayed all the time. A quarter of its half is kept for that: an
    eighth while the snapshot is taken, an eighth while it is written. A
    disk that fails ends the file, not the engine: ``error`` then says why.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        """Raises ``OSError`` where the file cannot be written."""
        path.open("a").close()
        self._path = path
        self._half = limit_bytes // 2
        self._writer: _SegmentWriter | None = None
        self._next: _NextWriter | None = None
        self.error: OSError | None = None

    @property
    def full(self) -> bool:
        """Whether a new segment should begin."""
        return self._beyond(self._half - self._half // 4)

    @property
    def overdue(self) -> bool:
        """Whether it must begin now, whatever that costs the pass."""
        return self._beyond(self._half - self._half // 8)

    def _beyond(self, record_bytes: int) -> bool:
        if self._writer is None or self._next is not None:
            return False
        return self._writer.record_bytes >= record_bytes

    def begin(self, segment: Segment) -> None:
        """The first segment's file, or the next one's, is begun.

        One that comes before the next one's first line stands is left out: records go on in both.
        """
        if self.error is not None or self._next is not None:
            return
        try:
            if self._writer is not None:
                self._next = _NextWriter(self._path_with("next"), segment, self._half // 8)
                return
            self._path_with("next").unlink(missing_ok=True)  # of an engine that was killed
            if self._path.exists() and self._path.stat().st_size:
                self._path.replace(self._path_with("1"))
            self._writer = _SegmentWriter(_create(self._path))
            for _ in self._writer.head(segment):
                pass
        except OSError as error:
            self._give_up(error)

    def advance(self) -> None:
        """Writes a little of the next segment's first line. Once it stands, that is the newest file."""
        if self._next is None or self._writer is None:
            return
        try:
            if self._next.advance():
                self._writer.end()
                self._writer.file.close()
                self._path.replace(self._path_with("1"))
                self._next.path.replace(self._path)
                self._writer, self._next = self._next, None
        except OSError as error:
            self._give_up(error)

    def put(self, record: Record, tokens: NDArray[np.int32] | None) -> None:
        """Writes a record."""
        if self._writer is None:
            return
        line = _line(record, tokens)
        try:
            self._writer.put(line)
            if self._next is not None:
                self._next.put(line)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Makes the file whole. Nothing may follow but ``begin``."""
        if self._writer is None:
            return
        try:
            self._writer.end()
            self._writer.file.close()
            self._drop_next()
        except OSError as error:
            self._give_up(error)
        self._writer = None

    def _path_with(self, suffix: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{suffix}")

    def _drop_next(self) -> None:
        if self._next is not None:
            self._next.drop()
            self._next = None

    def _give_up(self, error: OSError) -> None:
        self.error = error
        with suppress(OSError):
            self._drop_next()
        if self._writer is not None:
            with suppress(OSError):
                self._writer.file.close()
        self._writer = self._next = None


class _SegmentWriter:
    def __init__(self, file: IO[str]) -> None:
        self.file = file
        self._digest = blake2b(digest_size=16)
        self._records = 0
        self.record_bytes = 0
        """Written since the segment's first line."""

    def head(self, segment: Segment) -> Iterator[None]:
        """Writes the first line, a little with each step."""
        origin = segment.origin
        state = yield from segment.making()
        head: dict[str, Any] = {
            "headrace_journal": VERSION,
            "settings": asdict(origin.settings),
            "block_bytes": origin.block_bytes,
            "weights_version": origin.weights_version,
            "kv_dtype": origin.kv_dtype,
            "state_parts": list(origin.state_parts),
            "passes": segment.passes,
            "state": state,
        }
        written = 0
        for text in _in_parts(head):
            written += self._write(text)
            if written >= _PART_BYTES:
                written = 0
                yield
        self._write("\n")

    def put(self, line: str) -> None:
        self.record_bytes += self._write(line)
        self._records += 1

    def end(self) -> None:
        self.file.write(f"{_dumps(['z', self._records, self._digest.hexdigest()])}\n")
        self.file.flush()

    def _write(self, text: str) -> int:
        self.file.write(text)
        self._digest.update(text.encode())
        return len(text)


class _NextWriter(_SegmentWriter):
    """Of a segment whose first line is being written: its records wait for that.

    Invariants
        at most ``most_waiting`` bytes wait, and what comes in one pass: then all is written at once
    """

    def __init__(self, path: Path, segment: Segment, most_waiting: int) -> None:
        super().__init__(_create(path))
        self.path = path
        self._head = self.head(segment)
        self._most_waiting = most_waiting
        self._waiting: deque[str] | None = deque()
        self._waiting_bytes = 0
        self._came = 0
        """Bytes since the last ``advance``."""

    def advance(self) -> bool:
        """True: the first line stands, and every record that came since."""
        assert self._waiting is not None
        at_once = self._waiting_bytes > self._most_waiting
        for _ in self._head:
            if not at_once:
                return False
        # More than came, so that there is an end of it.
        until = self.record_bytes + self._came + _PART_BYTES
        self._came = 0
        while self._waiting and (at_once or self.record_bytes < until):
            line = self._waiting.popleft()
            self._waiting_bytes -= len(line)
            super().put(line)
        if self._waiting:
            return False
        self._waiting = None
        return True

    def put(self, line: str) -> None:
        if self._waiting is None:
            super().put(line)
        else:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            self._came += len(line)

    def drop(self) -> None:
        try:
            self.file.close()  # which writes the rest, for which there may be no room
        finally:
            self.path.unlink()


def read_journal(lines: Iterable[str], *, partial: bool = False) -> list[Segment]:
    """The segments of a file, from its lines.

    ``partial`` takes the whole records of a last segment that was never closed, or not even begun,
    as a killed engine leaves it. Raises ``JournalRejected``, with the line, for everything else that is not
    as it was written.
    """
    segments: list[Segment] = []
    digest = blake2b(digest_size=16)
    open_segment: Segment | None = None
    number = 0
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            whole = open_segment is not None or bool(segments)
            if partial and whole:
                break
            raise JournalRejected(f"it is cut off in line {number}", cut_off=whole)
        value = _parse(line, number)
        if open_segment is None:
            open_segment = _head(value, number)
            digest = blake2b(line.encode(), digest_size=16)
        elif line.startswith('["z"'):
            _check_end(value, open_segment, digest.hexdigest(), number)
            segments.append(open_segment)
            open_segment = None
        else:
            open_segment.records.append(_decode(value, number))
            digest.update(line.encode())
    if open_segment is not None:
        if not partial:
            raise JournalRejected(
                f"it is cut off after line {number}: the line that proves it whole is missing",
                cut_off=True,
            )
        segments.append(open_segment)
    if not segments:
        raise JournalRejected("it is empty")
    return segments


def _create(path: Path, flags: int = os.O_TRUNC) -> IO[str]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    os.fchmod(descriptor, 0o600)  # it may have been there, open to all
    return open(descriptor, "w", encoding="utf-8", newline="\n")


def _encode(record: Record) -> list[Any]:
    kind = record[0]
    if kind == "a":
        return ["a", record[1], asdict(record[2])]
    if kind == "p":
        _, now_s, digest, decode, packed = record
        slots = None if decode is None else decode.tolist()
        return ["p", now_s, digest.hex(), slots, b64encode(packed).decode()]
    if kind == "k":
        return ["k", [[number, index, key.hex()] for number, index, key in record[1]]]
    return list(record)


def _line(record: Record, tokens: NDArray[np.int32] | None) -> str:
    elements = _encode(record)
    if tokens is not None:
        elements.append(tokens.tolist())
    return f"{_dumps(elements)}\n"


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _in_parts(value: object) -> Iterator[str]:
    """What ``_dumps`` gives, in parts: a long list's at most ``_PART`` elements each.

    What was written of such a list is taken out of it: to free all at once would take as long as a pass.
    """
    if isinstance(value, dict):
        begin = "{"
        for key, inner in cast("dict[str, object]", value).items():
            yield f"{begin}{_dumps(key)}:"
            yield from _in_parts(inner)
            begin = ","
        yield "}" if begin == "," else "{}"
    elif isinstance(value, list):
        yield from _list_in_parts(cast("list[object]", value))
    else:
        yield _dumps(value)


def _list_in_parts(elements: list[object]) -> Iterator[str]:
    begin = "["
    while len(elements) > _PART:
        yield begin + _dumps(elements[:_PART])[1:-1]
        del elements[:_PART]
        begin = ","
    yield begin + _dumps(elements)[1:]


def _parse(line: str, number: int) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise JournalRejected(f"line {number} is not JSON: this is no journal") from None


def _head(value: object, number: int) -> Segment:
    if not isinstance(value, dict) or "headrace_journal" not in value:
        raise JournalRejected(f"line {number} begins no segment: this is no journal of Headrace")
    head = cast("dict[str, Any]", value)
    if head["headrace_journal"] != VERSION:
        raise JournalRejected(
            f"it has version {head['headrace_journal']!r}; this program reads version {VERSION}"
        )
    try:
        names = {field.name for field in fields(SchedulerSettings)}
        unknown = set(head["settings"]) - names
        if unknown:
            raise ValueError(f"unknown settings {', '.join(sorted(unknown))}")
        origin = Origin(
            SchedulerSettings(**head["settings"]),
            int(head["block_bytes"]),
            str(head["weights_version"]),
            str(head["kv_dtype"]),
            tuple(int(size) for size in head["state_parts"]),
        )
        state: State | None = head["state"]
        return Segment(origin, int(head["passes"]), state)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalRejected(f"line {number} is not the beginning of a segment: {error}") from None


def _check_end(end: object, segment: Segment, digest: str, number: int) -> None:
    if end != ["z", len(segment.records), digest]:
        raise JournalRejected(
            f"line {number} closes a segment with another content: the file was changed"
        )


def _decode(value: object, number: int) -> Record:
    if not isinstance(value, list):
        raise JournalRejected(f"line {number} is no record")
    parts = cast("list[Any]", value)
    kind = str(parts[0]) if parts else ""
    try:
        if len(parts) < _EVENTS[kind]:
            raise ValueError(f"{kind!r} with {len(parts)} elements")
        if kind == "a":
            arrival = dict(parts[2])
            arrival["media"] = tuple((int(a), int(b), bool(c)) for a, b, c in arrival["media"])
            return ("a", float(parts[1]), Arrival(**arrival))
        if kind == "p":
            decode = None if parts[3] is None else np.array(parts[3], np.int32)
            packed = b64decode(parts[4], validate=True)
            return ("p", float(parts[1]), bytes.fromhex(parts[2]), decode, packed)
        if kind == "k":
            return ("k", [(int(n), int(i), PrefixKey(bytes.fromhex(k))) for n, i, k in parts[1]])
        if kind == "l":
            return ("l", [(int(n), int(maker), int(common)) for n, maker, common in parts[1]])
        return tuple(parts[: _EVENTS[kind]])
    except (KeyError, TypeError, ValueError) as error:
        raise JournalRejected(f"line {number} is no record: {error}") from None
