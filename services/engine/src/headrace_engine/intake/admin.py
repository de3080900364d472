"""Admin: the engine's HTTP port: liveness, readiness, metrics. Nothing here changes anything.

Owner    io thread
Writes   nothing
Never    waits for the engine
Rules    metrics.one-snapshot
Next     headrace_engine.metrics
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Protocol

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Health(Protocol):
    """What the port shows."""

    @property
    def problems(self) -> list[str]:
        """Why no request can be served now; empty: ready."""
        ...

    @property
    def alive(self) -> bool:
        """False: only a restart helps."""
        ...

    def exposition(self) -> tuple[bytes, str]:
        """Metrics as text, and their media type."""
        ...


def build_admin(health: Health) -> Starlette:
    """``/health/live``, ``/health/ready`` and ``/metrics``."""

    async def live(_request: Request) -> Response:
        alive = health.alive
        return JSONResponse({"alive": alive}, 200 if alive else 503)

    async def ready(_request: Request) -> Response:
        problems = health.problems
        return JSONResponse({"ready": not problems, "problems": problems}, 503 if problems else 200)

    async def metrics(_request: Request) -> Response:
        body, media_type = health.exposition()
        return Response(body, media_type=media_type)

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/metrics", metrics),
        ]
    )


class AdminServer:
    """Uvicorn inside our event loop; the process's signals stay ours."""

    def __init__(self, app: Starlette, host: str, port: int) -> None:
        """Listens at once: a taken port is an ``OSError`` before anything is loaded."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                # Its parser holds no more of a head than 16 KiB; the other one all that comes, and copies
                # it for each piece, while leases wait.
                http="h11",
                log_config=None,
                log_level="error",  # below it is what strangers send, a line for each time
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    async def run(self) -> None:
        """Serves until ``stop`` or cancelled."""
        try:
            await self._server.serve(sockets=[self._socket])
        except asyncio.CancelledError:
            await self._server.shutdown(sockets=[self._socket])
            raise
        finally:
            self._socket.close()

    def stop(self) -> None:
        """Ends ``run`` soon."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
