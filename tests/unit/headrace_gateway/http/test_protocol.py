"""Connections that speak badly or not at all."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from headrace_gateway.http import protocol
from support.fake_inference import KEY
from support.http_edge import Wire

MODELS = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["tls", "nul", "length"],
)
async def test_what_is_no_http_is_told_in_our_form(wire: Wire, raw: bytes) -> None:
    await wire.send(raw)
    status, headers, body = await wire.answer()
    assert status == 400
    assert headers["connection"] == "close"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert await wire.reader.read() == b""


async def connected(address: tuple[str, int], data: bytes) -> Wire:
    """A connection whose first bytes are there before the server, on this loop, hears of it."""
    line = socket.create_connection(address)
    line.sendall(data)
    line.setblocking(False)
    return Wire(*await asyncio.open_connection(sock=line))


@pytest.mark.parametrize("before", [b"", b"GET /v1/models HTTP/1.1\r\nHost: "])
async def test_a_head_that_does_not_come_is_408(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], before: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    wire = await connected(address, before)
    status, _, body = await wire.answer()
    await wire.close()
    assert status == 408
    assert json.loads(body)["error"]["code"] == "body_timeout"


async def test_a_second_request_must_not_dawdle_either(
    monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    await wire.send(MODELS)
    status, _, _ = await wire.answer()
    assert status == 200
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    await wire.send(b"GET /v1/mod")
    status, _, _ = await wire.answer()
    assert status == 408


async def test_a_whole_head_stops_the_clock(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    wire = await connected(address, MODELS)
    assert (await wire.answer())[0] == 200
    await asyncio.sleep(0.3)
    await wire.send(MODELS)
    assert (await wire.answer())[0] == 200
    await wire.close()
