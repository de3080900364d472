"""Without a key nothing answers but the list."""

from __future__ import annotations

import json

import httpx
import pytest
from headrace_gateway.http.guard import MAX_HEADER_BYTES, OPEN_PATHS
from support.fake_inference import KEY, FakeHttpSettings
from support.http_edge import Edge, Wire

TRICKS = [
    "//v1/models",
    "/V1/models",
    "/x/../v1/models",
    "/health/live/../../v1/models",
    "/health/live/",
    "/health/live;a",
    "/v1/models/",
    "/v1%2Fmodels",
    "/v1/models;a",
    "/health/ready%00/v1/models",
]


@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE", "OPTIONS", "PUT", "PATCH"])
async def test_every_route_is_closed_without_a_key(edge: Edge, method: str) -> None:
    app = edge.build()
    async with edge.client(app=app) as client:
        paths = list((await client.get("/openapi.json")).json()["paths"])
    assert len(paths) > 8
    async with edge.client(key=None, app=app) as client:
        for path in [*paths, "/openapi.json", "/docs", "/redoc", "/nothing"]:
            if path in OPEN_PATHS | {"/metrics"} and method in {"GET", "HEAD"}:
                continue
            answer = await client.request(method, path.replace("{request_id}", "r"))
            assert answer.status_code == 401, path
            if method != "HEAD":
                assert answer.json()["error"]["code"] == "invalid_api_key"
    assert not edge.service.calls


async def test_a_route_added_later_is_closed(edge: Edge) -> None:
    app = edge.build()
    reached: list[int] = []

    @app.get("/v1/dummy")
    def dummy() -> None:  # pyright: ignore[reportUnusedFunction]
        reached.append(1)

    async with edge.client(key=None, app=app) as client:
        assert (await client.get("/v1/dummy")).status_code == 401
    assert not reached


@pytest.mark.parametrize("path", TRICKS)
async def test_no_spelling_of_a_path_gets_past(wire: Wire, edge: Edge, path: str) -> None:
    await wire.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, _, _ = await wire.answer()
    assert status == 401


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
async def test_the_list_answers(edge: Edge, path: str) -> None:
    async with edge.client(key=None) as client:
        assert (await client.get(path)).status_code == 200
        assert (await client.post(path)).status_code == 401


async def test_metrics_can_be_closed(edge: Edge) -> None:
    edge.settings = FakeHttpSettings(metrics_need_key=True)
    async with edge.client(key=None) as client:
        assert (await client.get("/metrics")).status_code == 401
    async with edge.client() as client:
        assert (await client.get("/metrics")).status_code == 200


async def test_the_refusal_comes_before_the_body(wire: Wire) -> None:
    await wire.send(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 50\r\nExpect: 100-continue\r\n\r\n"
    )
    status, headers, _ = await wire.answer()
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer caf\xe9",
        b"Bearer \xf0\x9f\xa4\x96",
        b"Bearer ",
        b"Bearer",
        b"Basic abc",
        b"Bearer " + KEY.encode() + b"x",
        b"Bearer " + KEY.encode()[:-1],
        KEY.encode(),
    ],
)
async def test_wrong_keys_of_any_bytes_are_401(wire: Wire, value: bytes) -> None:
    await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n")
    status, _, body = await wire.answer()
    assert status == 401
    assert json.loads(body)["error"]["type"] == "authentication_error"
    assert KEY[:-1].encode() not in body


async def test_huge_headers_are_431(wire: Wire) -> None:
    key = b"k" * (MAX_HEADER_BYTES + 1)
    await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key)
    await wire.send(b"\r\n\r\n")
    status, _, body = await wire.answer()
    assert status == 431
    assert json.loads(body)["error"]["message"]


async def test_the_key_may_come_as_x_api_key(edge: Edge) -> None:
    async with edge.client(key=None) as client:
        good = await client.get("/v1/models", headers={"x-api-key": KEY})
        bad = await client.get("/v1/models", headers={"x-api-key": "no"})
    assert (good.status_code, bad.status_code) == (200, 401)


async def test_a_key_without_the_scope_is_403(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.auth.scopes = frozenset({"admin"})
    answer = await client.post("/v1/chat/completions", json={})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "permission_denied"


async def test_other_protocols_are_turned_away(edge: Edge) -> None:
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope: dict[str, object] = {"type": "websocket", "path": "/v1/models", "headers": []}
    await edge.build()(scope, receive, send)  # pyright: ignore[reportArgumentType]
    assert [message["type"] for message in sent] == ["websocket.close"]


async def test_of_two_keys_the_one_that_is_named_as_such_counts(edge: Edge) -> None:
    async with edge.client() as client:
        both = {"authorization": "Bearer wrong", "x-api-key": KEY}
        assert (await client.get("/v1/models", headers=both)).status_code == 401
        assert edge.auth.seen == [b"wrong"]
