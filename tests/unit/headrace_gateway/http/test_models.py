"""``GET /v1/models``."""

from __future__ import annotations

import httpx


async def test_models_are_listed_in_the_openai_form(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models")
    assert answer.json() == {
        "object": "list",
        "data": [
            {
                "id": "small/model",
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "headrace",
                "max_model_len": 8192,
                "ready": True,
            }
        ],
    }


async def test_a_name_with_a_slash_is_found(client: httpx.AsyncClient) -> None:
    for name in ("small/model", "small%2Fmodel"):
        answer = await client.get(f"/v1/models/{name}")
        assert (answer.status_code, answer.json()["id"]) == (200, "small/model")


async def test_an_unknown_model_is_404(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models/other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
