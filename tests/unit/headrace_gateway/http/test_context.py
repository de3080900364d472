"""Request ids and timing."""

from __future__ import annotations

import httpx
import pytest
from structlog.testing import capture_logs
from support.http_edge import Edge, Wire

ASK = {"model": "m", "prompt": "a"}


async def test_a_sane_label_is_echoed_and_is_not_the_id(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    first = await client.post("/v1/completions", json=ASK, headers={"x-request-id": "dup-1"})
    second = await client.post("/v1/completions", json=ASK, headers={"x-request-id": "dup-1"})
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "dup-1"
    assert first.json()["id"] != second.json()["id"]
    assert first.headers["x-headrace-request-id"] == first.json()["id"]


@pytest.mark.parametrize("label", ["", "x" * 129, "x" * 8192, "../x", "a b", "<b>", "é"])
async def test_an_odd_label_is_replaced(client: httpx.AsyncClient, label: str) -> None:
    answer = await client.post(
        "/v1/completions",
        json=ASK,
        headers=[(b"x-request-id", label.encode())],
    )
    assert answer.headers["x-request-id"] == answer.json()["id"]


async def test_a_label_with_line_breaks_makes_no_header(wire: Wire) -> None:
    await wire.send(
        b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Request-Id: a%0d%0aSet-Cookie: b\r\n\r\n"
    )
    _, headers, _ = await wire.answer()
    assert "set-cookie" not in headers
    assert headers["x-request-id"].startswith("req-")


async def test_refusals_have_an_id_too(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        answer = await client.get("/v1/models")
    assert answer.headers["x-request-id"].startswith("req-")
    assert answer.headers["openai-processing-ms"] == "0"


async def test_a_draining_gateway_keeps_no_connection(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    before = await client.get("/health/live")
    edge.readiness.draining = True
    after = await client.post("/v1/completions", json={**ASK, "stream": True})
    assert "connection" not in before.headers
    assert after.headers["connection"] == "close"


async def test_probes_that_find_all_well_are_no_news_in_the_log(
    client: httpx.AsyncClient,
) -> None:
    with capture_logs() as said:
        for path in ("/health/live", "/metrics", "/v1/models"):
            await client.get(path)
    levels = [(line["route"], line["log_level"]) for line in said]
    assert levels == [("/health/live", "debug"), ("/metrics", "debug"), ("/v1/models", "info")]
