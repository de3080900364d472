"""The layers in their order."""

from __future__ import annotations

import httpx
from support.http_edge import Edge


async def test_refusals_of_the_guard_pass_the_layers_outside_of_it(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        answer = await client.get("/v1/models", headers={"origin": "https://ui.example"})
    assert answer.status_code == 401
    assert answer.headers["x-request-id"]
    assert answer.headers["access-control-allow-origin"] == "https://ui.example"
    assert b'status="401"' in edge.metrics.registry.exposition()


async def test_a_slash_more_is_another_path(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models/")
    assert answer.status_code == 404


async def test_there_are_no_document_pages(client: httpx.AsyncClient) -> None:
    for path in ("/docs", "/redoc"):
        assert (await client.get(path)).status_code == 404
