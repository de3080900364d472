"""Health and version."""

from __future__ import annotations

import httpx
from support.fake_inference import FakeReport
from support.http_edge import Edge


async def test_live_answers_whatever_is_ready(edge: Edge) -> None:
    edge.readiness.says = FakeReport(ready=False, reasons=("draining",))
    async with edge.client(key=None) as client:
        live = await client.get("/health/live")
        ready = await client.get("/health/ready")
        head = await client.head("/health/ready")
    assert live.status_code == 200
    assert (ready.status_code, head.status_code) == (503, 503)
    assert ready.json() == {"status": "unready", "reasons": ["draining"]}
    assert head.content == b""


async def test_ready_is_200(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


async def test_version_names_the_release(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json()["version"].count(".") == 2
