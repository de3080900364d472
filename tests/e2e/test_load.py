"""Two hundred streams at once, of which many are left in the middle: nothing stays behind."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import redis.asyncio
from support.api import CAPITAL, Api
from support.idle import blocks_at_hand, check_idle
from support.served import ServedStack

STREAMS = 200
SEED = 20261130


@dataclass
class Tally:
    """What became of the streams."""

    finished: int = 0
    left: int = 0
    cancelled: int = 0
    refused: int = 0
    ids: list[str] = field(default_factory=list[str])


async def one_stream(
    client: httpx.AsyncClient, stack: ServedStack, number: int, tally: Tally
) -> None:
    """A chat that ends by itself, is left after some events, or is cancelled by its id."""
    chance = random.Random(SEED + number)
    fate = chance.choice(["end", "end", "leave", "cancel", "leave at once"])
    patience = chance.randrange(1, 8)
    body: dict[str, Any] = {
        "model": stack.model,
        "messages": [{"role": "user", "content": f"Tell me of number {number % 40}."}],
        "max_tokens": 12,
        "seed": number,
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as stream:
        if stream.status_code == 429:
            tally.refused += 1
            return
        assert stream.status_code == 200, await stream.aread()
        request = stream.headers["x-headrace-request-id"]
        tally.ids.append(request)
        if fate == "leave at once":
            tally.left += 1
            return
        events = 0
        async for line in stream.aiter_lines():
            events += line.startswith("data: ")
            if line == "data: [DONE]":
                tally.finished += 1
            elif events == patience and fate == "leave":
                tally.left += 1
                return
            elif events == patience and fate == "cancel":
                events += 1
                tally.cancelled += 1
                await client.delete(f"/v1/requests/{request}")


async def keys_without_end(stack: ServedStack, ids: list[str]) -> list[str]:
    """Keys of finished requests that would stay for ever, and what still names one."""
    server: Any = redis.asyncio.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
        stack.redis_url, password=stack.redis_password, decode_responses=True
    )
    async with server:
        keys: list[str] = [key async for key in server.scan_iter(match="hr:*", count=1000)]
        named = [key for key in keys if any(request in key for request in ids)]
        unending = [key for key in named if await server.ttl(key) < 0]
        shared = [f"hr:{{{stack.model}}}:{kind}" for kind in ("leases", "cancel", "queued")]
        return unending + [key for key in shared if key in keys]


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_nothing_stays_behind_two_hundred_streams(api: Api, stack: ServedStack) -> None:
    before = api.text(CAPITAL)
    check_idle(stack)
    blocks = blocks_at_hand(stack)
    tally = Tally()
    async with (
        httpx.AsyncClient(
            base_url=stack.url,
            headers=api.client.headers,
            timeout=150,
            limits=httpx.Limits(max_connections=None),
            trust_env=False,
        ) as client,
        asyncio.TaskGroup() as group,
    ):
        for number in range(STREAMS):
            group.create_task(one_stream(client, stack, number, tally))
    assert tally.refused == 0
    assert tally.finished > STREAMS // 4
    assert tally.left > STREAMS // 8
    check_idle(stack)
    assert blocks_at_hand(stack) == blocks
    assert await keys_without_end(stack, tally.ids) == []
    assert api.text(CAPITAL) == before
