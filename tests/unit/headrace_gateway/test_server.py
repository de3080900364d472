"""The HTTP server stops when it is told to, whoever is still connected."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

import httpx
import pytest
from fastapi import FastAPI
from headrace_gateway.server import HttpServer
from starlette.responses import StreamingResponse


def application() -> FastAPI:
    """One quick route, one that never ends."""
    app = FastAPI()

    async def quick() -> dict[str, bool]:
        return {"ok": True}

    async def endless() -> StreamingResponse:
        async def body() -> AsyncGenerator[bytes]:
            while True:
                yield b"x"
                await asyncio.sleep(0.01)

        return StreamingResponse(body())

    app.get("/quick")(quick)
    app.get("/endless")(endless)
    return app


def test_a_taken_port_is_an_os_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            HttpServer("127.0.0.1", taken.getsockname()[1])


async def test_idle_connections_do_not_prolong_the_end() -> None:
    server = HttpServer("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(application(), last_words_s=300))
    await server.started()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as idle:
        assert (await idle.get("/quick")).json() == {"ok": True}
        server.stop()
        async with asyncio.timeout(60):  # much less than the last words
            await serving


async def test_busy_connections_get_their_last_words_and_no_more() -> None:
    server = HttpServer("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(application(), last_words_s=1))
    await server.started()
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client,
        client.stream("GET", "/endless") as response,
    ):
        words = response.aiter_bytes(1)
        await anext(words)
        server.stop()
        stopped_at = asyncio.get_running_loop().time()
        with contextlib.suppress(httpx.TransportError):  # it is cut off then
            async for word in words:
                assert word == b"x"
        assert asyncio.get_running_loop().time() - stopped_at > 0.9
        async with asyncio.timeout(60):
            await serving


async def test_what_strangers_send_leaves_no_log_line(caplog: pytest.LogCaptureFixture) -> None:
    server = HttpServer("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(application(), last_words_s=1))
    await server.started()
    upgrade = b"GET /quick HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for sent in (b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", upgrade):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 ")
        writer.close()
        await writer.wait_closed()
    server.stop()
    await serving
    assert [record.getMessage() for record in caplog.records] == []
