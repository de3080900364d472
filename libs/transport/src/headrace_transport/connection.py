"""The wires over Redis: both ends, composed, checked and connected."""

from __future__ import annotations

from headrace_transport.address import Access
from headrace_transport.api_keys import ApiKeys
from headrace_transport.cancels import CancelMarks, MarkReads
from headrace_transport.cards import CardWrites
from headrace_transport.checks import check_server
from headrace_transport.control import ControlReads
from headrace_transport.errors import TransportError
from headrace_transport.frames import FrameReads
from headrace_transport.leases import Leases
from headrace_transport.options import WireOptions
from headrace_transport.processes import EngineLeases, GatewayLeases
from headrace_transport.rates import RateLimits
from headrace_transport.requests import Requests
from headrace_transport.server import Server

_DEFAULTS = WireOptions()


class RedisGatewayWire(Requests, CancelMarks, FrameReads, GatewayLeases, ApiKeys, RateLimits):
    """Implements ``GatewayWire``. One event loop; ``connect_gateway`` makes it."""

    def __init__(self, server: Server, warnings: list[str]) -> None:
        super().__init__(server)
        self.warnings = warnings
        """What the start-up checks found worth a word."""


class RedisEngineWire(Leases, MarkReads, ControlReads, CardWrites, EngineLeases):
    """Implements ``EngineWire``. One event loop; ``connect_engine`` makes it."""

    def __init__(self, server: Server, warnings: list[str]) -> None:
        super().__init__(server)
        self.warnings = warnings
        """What the start-up checks found worth a word."""


async def connect_gateway(
    url: str,
    *,
    password: str | None = None,
    access: Access | None = None,
    options: WireOptions = _DEFAULTS,
) -> RedisGatewayWire:
    """The gateway's end. ``access`` in place of ``password`` says more than that.

    Raises ``ServerUnsuitable`` or ``TransportUnavailable``.
    """
    server = Server(url, password=password, access=access, options=options)
    return RedisGatewayWire(server, await _checked(server))


async def connect_engine(
    url: str,
    *,
    password: str | None = None,
    access: Access | None = None,
    options: WireOptions = _DEFAULTS,
) -> RedisEngineWire:
    """The engine's end. ``access`` in place of ``password`` says more than that.

    Raises ``ServerUnsuitable`` or ``TransportUnavailable``.
    """
    server = Server(url, password=password, access=access, options=options)
    return RedisEngineWire(server, await _checked(server))


async def _checked(server: Server) -> list[str]:
    try:
        return await check_server(server)
    except TransportError:
        await server.close()
        raise
