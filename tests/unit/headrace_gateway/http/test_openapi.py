"""The OpenAPI document."""

from __future__ import annotations

import httpx


async def test_the_document_describes_bodies_and_resolves_its_references(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.get("/openapi.json")
    document = answer.json()
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]
    reference = body["content"]["application/json"]["schema"]["$ref"]
    schemas = document["components"]["schemas"]
    assert reference == "#/components/schemas/ChatFields"
    assert schemas["ChatFields"]["required"] == ["model", "messages"]
    for part in answer.text.split('"$ref":"#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas
