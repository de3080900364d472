"""Whether this gateway should get traffic. Next: headrace_gateway.http"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import GatewayWire

PING_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """What a probe is told."""

    ready: bool
    reasons: tuple[str, ...]
    """Why not; empty when ready."""


class Readiness:
    """Ready: not draining, and the server answers. No engine is needed for that."""

    def __init__(self, wire: GatewayWire) -> None:
        self._wire = wire
        self.draining = False

    async def report(self) -> ReadinessReport:
        """Asks the server, for at most two seconds."""
        reasons: list[str] = []
        if self.draining:
            reasons.append("draining")
        try:
            async with asyncio.timeout(PING_S):
                await self._wire.ping()
        except (TransportUnavailable, TimeoutError):
            reasons.append("the request queue cannot be reached")
        return ReadinessReport(not reasons, tuple(reasons))
