"""Records that cannot be read: skipped where they are listed with others, counted, each told once.

What comes in a stream has no name, and is told once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from headrace_kit.log import get_logger

from headrace_transport.errors import CommandFailed, RecordRejected
from headrace_transport.telling import Telling

log = get_logger(__name__)

EntryKind = Literal["control", "fence", "frame", "log", "record"]
"""What comes in streams."""
DamagedKind = Literal["card", "engine", "key", "replaced", "request"] | EntryKind
DAMAGED_KINDS: Final[tuple[DamagedKind, ...]] = (
    *("card", "control", "engine", "fence", "frame", "key", "log", "record", "replaced", "request"),
)
TOLD_MOST: Final = 1_000
"""Records that are told; more of them are counted only."""


class Damaged:
    """What one process met and could not read. One event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._counts: dict[DamagedKind, int] = dict.fromkeys(DAMAGED_KINDS, 0)
        self._told: set[tuple[DamagedKind, str]] = set()
        self._telling = Telling(now_s)

    @property
    def counts(self) -> Mapping[DamagedKind, int]:
        """Records skipped so far, by kind; one that is met again counts again."""
        return self._counts

    @contextmanager
    def skipped(self, kind: DamagedKind, name: str) -> Generator[None]:
        """Around the reading of one record of several: ends it at what cannot be read."""
        try:
            yield
        except (CommandFailed, RecordRejected) as error:  # the latter: under a name of none of ours
            self._counts[kind] += 1
            if (kind, name) not in self._told and len(self._told) < TOLD_MOST:
                self._told.add((kind, name))
                log.error("wire.damaged_record", kind=kind, name=name, reason=str(error))

    def met(self, kind: EntryKind | Literal["card"]) -> None:
        """A record that was refused since it cannot be decoded."""
        self._counts[kind] += 1
        if (records := self._telling.due(kind)) is not None:
            reason = "it cannot be decoded"
            log.error("wire.damaged_record", kind=kind, records=records, reason=reason)

    def replaced(self, key: str, kind: str) -> None:
        """A key that only we write was of another type (``kind``), and is no more."""
        self._counts["replaced"] += 1
        log.error("wire.replaced", key=key, was=kind)
