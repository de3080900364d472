"""Records of another wire version: refused by whoever reads them, counted, told once a minute.

One that is damaged has no version (0), and is no other version's: ``headrace_transport.damaged``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from headrace_contracts.limits import WIRE_VERSION
from headrace_kit.log import get_logger

from headrace_transport.damaged import Damaged
from headrace_transport.telling import Telling

log = get_logger(__name__)

Kind = Literal["card", "control", "fence", "frame", "log", "record"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Foreign:
    """What one process read of other versions than its own. One event loop."""

    def __init__(self, damaged: Damaged, now_s: Callable[[], float] = time.monotonic) -> None:
        """``damaged`` counts what has no version at all."""
        self._damaged = damaged
        self._counts: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._telling = Telling(now_s)

    @property
    def counts(self) -> Mapping[Kind, int]:
        """Records refused so far, by kind."""
        return self._counts

    def is_ours(self, kind: Kind, version: int) -> bool:
        """Whether a record may be read further. What may not is counted, here or as damaged."""
        if version == WIRE_VERSION:
            return True
        if not version:
            self._damaged.met(kind)
            return False
        self._counts[kind] += 1
        if (records := self._telling.due(kind)) is not None:
            log.error(
                "wire.foreign_version",
                kind=kind,
                version=version,
                ours=WIRE_VERSION,
                records=records,
            )
        return False
