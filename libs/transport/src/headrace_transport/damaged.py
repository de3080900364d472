"""Records that cannot be read: skipped where they are listed with others, counted, each told once."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, get_args

from headrace_kit.log import get_logger

from headrace_transport.errors import CommandFailed, RecordRejected

log = get_logger(__name__)

DamagedKind = Literal["card", "engine", "key", "request"]
DAMAGED_KINDS: Final[tuple[DamagedKind, ...]] = get_args(DamagedKind)
TOLD_MOST: Final = 1_000
"""Records that are told; more of them are counted only."""


class Damaged:
    """What one process met and could not read. One event loop."""

    def __init__(self) -> None:
        self._counts: dict[DamagedKind, int] = dict.fromkeys(DAMAGED_KINDS, 0)
        self._told: set[tuple[DamagedKind, str]] = set()

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
