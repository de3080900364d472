"""Records of another wire version, or damaged ones, which have none (0): refused by whoever reads
them, counted, told once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from headrace_contracts.limits import WIRE_VERSION
from headrace_kit.log import get_logger

log = get_logger(__name__)

Kind = Literal["card", "control", "fence", "frame", "log", "record"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
TELL_EVERY_S: Final = 60.0


class Foreign:
    """What one process read of other versions than its own. One event loop."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._told: dict[Kind, tuple[float, int]] = {}

    @property
    def counts(self) -> Mapping[Kind, int]:
        """Records refused so far, by kind."""
        return self._counts

    def is_ours(self, kind: Kind, version: int) -> bool:
        """Whether a record may be read further. What may not is counted here."""
        if version == WIRE_VERSION:
            return True
        self._counts[kind] += 1
        count, now = self._counts[kind], self._now_s()
        at, told = self._told.get(kind, (-TELL_EVERY_S, 0))
        if now - at >= TELL_EVERY_S:
            self._told[kind] = (now, count)
            log.error(
                "wire.foreign_version",
                kind=kind,
                version=version,
                ours=WIRE_VERSION,
                records=count - told,
            )
        return False
