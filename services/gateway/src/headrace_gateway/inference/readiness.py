"""Whether this gateway should get traffic. Next: headrace_gateway.http"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import BackendUnavailable

PING_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """What a probe is told."""

    ready: bool
    reasons: tuple[str, ...]
    """Why not; empty when ready."""


class Readiness:
    """Ready: not draining, the server answers, and calls would not wait for a tokenizer to be
    built. No engine is needed for that, and no model.
    """

    def __init__(
        self, wire: GatewayWire, *, cold: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """``cold`` says whether there are models, and none can be asked yet."""
        self._wire = wire
        self._cold = cold
        self.draining = False

    async def report(self) -> ReadinessReport:
        """Asks the server, for at most two seconds."""
        reasons: list[str] = []
        if self.draining:
            reasons.append("draining")
        try:
            async with asyncio.timeout(PING_S):
                await self._wire.ping()
                if self._cold is not None and await self._cold():
                    reasons.append("tokenizers are being built")
        except (TransportUnavailable, BackendUnavailable, TimeoutError):
            reasons.append("the request queue cannot be reached")
        return ReadinessReport(not reasons, tuple(reasons))
