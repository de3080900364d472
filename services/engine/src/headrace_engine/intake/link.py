"""Link: whether the server answers, said once per change, and how long to wait before trying again.

Owner    io thread
Writes   Link
Never    logs per attempt
Rules    intake.outage-is-survived
Next     headrace_engine.intake.consumer
"""

from __future__ import annotations

import asyncio

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger

log = get_logger(__name__)

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 1.0


class Link:
    """What the coroutines that use the wire tell each other about it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._down_since: float | None = None
        self._wait_s = _FIRST_WAIT_S

    @property
    def up(self) -> bool:
        """Whether the last exchange succeeded. True before the first."""
        return self._down_since is None

    def succeeded(self) -> None:
        """The server answered."""
        if self._down_since is not None:
            away_s = round(self._clock.monotonic() - self._down_since, 3)
            log.info("wire.back", away_s=away_s)
            self._down_since = None
            self._wait_s = _FIRST_WAIT_S

    async def failed(self, error: Exception) -> None:
        """The server did not answer. Returns when it is time to try again."""
        if self._down_since is None:
            self._down_since = self._clock.monotonic()
            log.warning("wire.away", error=str(error))
        wait_s = self._wait_s
        self._wait_s = min(self._wait_s * 2, _LONGEST_WAIT_S)
        await asyncio.sleep(wait_s)
