"""What every part of a Redis wire has: the server."""

from __future__ import annotations

from headrace_contracts import keys

from headrace_transport.foreign import Foreign
from headrace_transport.server import Server


class Part:
    """Base of the parts that ``headrace_transport.connection`` composes into wires."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.damaged = server.damaged
        self.foreign = Foreign(self.damaged)

    async def ping(self) -> None:
        """Raises ``TransportUnavailable`` when the server does not answer in time, or takes no
        writes: a replica, or a primary whose disk is full, answers a PING.
        """
        await self._server.command("DEL", keys.PROBE)

    async def close(self) -> None:
        """Closes every connection of the wire."""
        await self._server.close()
