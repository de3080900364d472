"""What a gateway does for API keys beside its calls. Next: headrace_gateway.auth.keys"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace_kit.clock import Clock
from headrace_kit.log import get_logger

from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.rounds import Rounds

log = get_logger(__name__)

INITIAL_KEY: Final = "initial key"
"""Name of the key that the deployment brings along."""
EVERY_S: Final = 5.0
FORGET_EVERY_S: Final = 3600.0


class KeyUpkeep:
    """Keeps the deployment's first key known, and deletes keys that ended long ago."""

    def __init__(self, keys: KeyStore, clock: Clock, *, initial: str | None) -> None:
        self._keys = keys
        self._clock = clock
        self._initial = initial
        self._forget_at = clock.monotonic()
        self._rounds = Rounds("keys.upkeep_missed")

    async def run(self) -> None:
        """For ever. A server that came back empty has the first key again within ``EVERY_S``."""
        while True:
            with self._rounds.guarded():
                await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Once. Raises like ``adopt``."""
        await self.adopt()
        now = self._clock.monotonic()
        if now >= self._forget_at:
            if forgotten := await self._keys.forget_old():
                log.info("keys.forgotten", keys=forgotten)
            self._forget_at = now + FORGET_EVERY_S

    async def adopt(self) -> None:
        """Makes the first key known, however many others there are. Raises ``TransportError``, and
        ``ValueError`` for a first key that cannot be one.
        """
        if self._initial is not None and await self._keys.adopt_unless_known(
            self._initial, name=INITIAL_KEY, scopes=("inference", "admin")
        ):
            log.info("gateway.initial_key_adopted")
