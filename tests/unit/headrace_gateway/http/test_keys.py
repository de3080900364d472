"""API keys over HTTP: only for those who may."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import httpx
import pytest
from headrace_gateway.auth.keys import Authenticator
from headrace_transport.memory import MemoryGatewayWire
from structlog.testing import capture_logs
from support.fake_inference import FakeAuth
from support.http_edge import Edge

BY = "k1"
"""Id of the key that administers."""


def told(said: Sequence[MutableMapping[str, Any]]) -> list[tuple[str, str, str]]:
    """What was logged of keys: event, id of the key, and of the one that did it."""
    return [(each["event"], each["key"], each["by"]) for each in said if "by" in each]


@pytest.fixture
def edge() -> Edge:
    return Edge(auth=FakeAuth(scopes=frozenset({"admin"})))


async def test_a_key_is_made_opens_is_listed_without_its_secret_and_revoked(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    wish = {"name": "ci", "tenant": "acme", "models": ["m"], "expires_in_s": 60, "band": 2}
    with capture_logs() as said:
        answer = await client.post("/admin/keys", json=wish)
    assert answer.status_code == 201
    assert ("key.made", answer.json()["id"], BY) in told(said)
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    now_s = edge.clock.wall_ms() // 1000
    assert (made["tenant"], made["scopes"], made["band"]) == ("acme", ["inference"], 2)
    assert (made["models"], made["expires"] - now_s) == (["m"], 60)

    wire = MemoryGatewayWire(edge.broker)
    auth = Authenticator(wire, b"0123456789abcdef", edge.clock, cache_s=0)
    caller = await auth.token(made["key"].encode())
    assert (caller.key_id, caller.tenant) == (made["id"], "acme")

    listed = await client.get("/admin/keys")
    assert made["key"] not in listed.text
    assert listed.json()["data"] == [{name: made[name] for name in made if name != "key"}]

    with capture_logs() as said:
        assert (await client.delete(f"/admin/keys/{made['id']}")).json()["revoked"] is True
    assert ("key.revoked", made["id"], BY) in told(said)
    assert made["key"] not in str(said)
    [key] = (await client.get("/admin/keys")).json()["data"]
    assert key["revoked"] == now_s
    missing = await client.delete("/admin/keys/nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ({}, "name"),
        ({"name": "a", "max_conccurency": 1}, "max_conccurency"),
        ({"name": "a", "band": "1"}, "band"),
        ({"name": "a", "expires_in_s": 0}, "expires_in_s"),
        ({"name": "a", "band": 9}, None),
        ({"name": "a", "tenant": "a b"}, None),
        ({"name": "a", "scopes": ["root"]}, None),
        ({"name": "a", "models": [""]}, None),
        ({"name": "a", "models": ["m", "two words"]}, None),
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(
    edge: Edge, client: httpx.AsyncClient, wish: dict[str, object], param: str | None
) -> None:
    answer = await client.post("/admin/keys", json=wish)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert await edge.keys.list() == []


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/admin/keys"), ("POST", "/admin/keys"), ("DELETE", "/admin/keys/k1")],
)
async def test_a_key_without_the_scope_is_denied(method: str, path: str) -> None:
    edge = Edge()
    async with edge.client() as client:
        answer = await client.request(method, path)
    assert answer.status_code == 403
    assert "admin" in answer.json()["error"]["message"]


async def test_a_server_that_is_away_is_worth_another_try(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.broker.up = False
    answer = await client.get("/admin/keys")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "backend_unavailable")
