"""``GET /metrics``."""

from __future__ import annotations

import httpx


async def test_metrics_hold_the_requests_before(client: httpx.AsyncClient) -> None:
    await client.get("/v1/models")
    await client.get("/v1/models/other")
    await client.get("/secret/path")
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["content-type"].count("charset") == 1
    lines = answer.text.splitlines()
    name = "headrace_gateway_http_requests_total"
    assert f'{name}{{route="/v1/models",status="200"}} 1.0' in lines
    assert f'{name}{{route="/v1/models/{{name:path}}",status="404"}} 1.0' in lines
    assert f'{name}{{route="unmatched",status="404"}} 1.0' in lines
    assert "secret" not in answer.text
