"""Pages of allowed origins can call and read; others get no leave."""

from __future__ import annotations

from support.fake_inference import FakeHttpSettings
from support.http_edge import Edge

ORIGIN = "https://ui.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def test_a_preflight_needs_no_key(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        answer = await client.options(
            "/v1/chat/completions", headers={"origin": ORIGIN, **PREFLIGHT}
        )
    assert answer.status_code in {200, 204}
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert "authorization" in allowed
    assert "content-type" in allowed
    assert "access-control-allow-credentials" not in answer.headers
    assert not edge.auth.seen


async def test_the_page_can_read_a_401_and_a_200(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        refused = await client.get("/v1/models", headers={"origin": ORIGIN})
    async with edge.client() as client:
        answered = await client.get("/v1/models", headers={"origin": ORIGIN})
    assert (refused.status_code, answered.status_code) == (401, 200)
    for answer in (refused, answered):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_another_origin_gets_no_leave(edge: Edge) -> None:
    evil = {"origin": "https://evil.example"}
    async with edge.client() as client:
        preflight = await client.options("/v1/chat/completions", headers={**evil, **PREFLIGHT})
        plain = await client.get("/v1/models", headers=evil)
    assert preflight.status_code == 400
    assert preflight.json()["error"]["message"]
    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in plain.headers


async def test_options_without_an_origin_is_no_preflight(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        assert (await client.options("/v1/chat/completions")).status_code == 401


async def test_any_origin_is_never_allowed_with_credentials(edge: Edge) -> None:
    edge.settings = FakeHttpSettings(cors_origins=("*",))
    async with edge.client() as client:
        answer = await client.get("/v1/models", headers={"origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
