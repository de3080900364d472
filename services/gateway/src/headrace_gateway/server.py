"""The HTTP server: uvicorn inside our event loop; signals and the order of stopping stay ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Final

import uvicorn
from fastapi import FastAPI

from headrace_gateway.http.protocol import EdgeProtocol

KEEP_ALIVE_S: Final = 75
"""Idle connections are kept longer than the usual load balancer's 60 s, so that it closes first."""
BACKLOG: Final = 2048


class HttpServer:
    """Started once, stopped once."""

    def __init__(self, host: str, port: int) -> None:
        """Binds at once: a taken port is an ``OSError`` before anything else is started."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        """Where it listens."""
        self._server: _Server | None = None
        self._up = asyncio.Event()

    async def serve(
        self, app: FastAPI, *, last_words_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        """Serves until ``stop``, over TLS if ``tls`` is given. Connections that are busy then get
        ``last_words_s`` to say what they have to; idle ones none.
        """
        self._server = _Server(
            uvicorn.Config(
                app,
                http=EdgeProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # below it is what strangers send, a line for each time
                access_log=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=max(1, round(last_words_s)),
                backlog=BACKLOG,
                ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            ),
            self._up,
        )
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self._socket.close()

    async def started(self) -> None:
        """Waits until connections are accepted."""
        await self._up.wait()

    def stop(self) -> None:
        """Ends ``serve`` soon; lets go of the port where it never began."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, up: asyncio.Event) -> None:
        super().__init__(config)
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
