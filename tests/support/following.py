"""A client that reads on: what docs/guides/api.md tells people to do when a stream is cut off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx

AGAIN_S = 0.1
"""Pause before the next try at an address that refuses."""


@dataclass
class Followed:
    """One stream, from its first byte to its end."""

    text: str = ""
    id: str = ""
    cursor: str = ""
    """The last ``id:`` line."""
    cursors: list[int] = field(default_factory=list[int])
    """All of them, in order."""
    tokens: int | None = None
    """Completion tokens, as the usage says at the end."""
    finish: str | None = None
    handed_over: int = 0
    """Ends that named the place to read on at."""
    cut_off: int = 0
    """Ends without a word."""
    refused: int = 0
    """Calls that were told to come back, found nobody, or a connection that was being closed."""
    done: bool = False
    silent_most_s: float = 0.0
    """Longest time between two pieces of text."""

    @property
    def rising(self) -> bool:
        """Whether no cursor was told twice or out of order."""
        return all(a < b for a, b in zip(self.cursors, self.cursors[1:], strict=False))


async def follow(
    http: httpx.AsyncClient,
    address: Callable[[], str],
    body: dict[str, Any],
    *,
    within_s: float = 300.0,
    path: str = "/v1/completions",
) -> Followed:
    """Streams a call to its end, reading on at ``address()`` as often as it takes.

    Raises AssertionError for an error that no reading on can help.
    """
    found = Followed()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with asyncio.timeout(within_s):
        while not found.done:
            answered = False
            try:
                if found.id:
                    where = f"{address()}/v1/requests/{found.id}/events"
                    query = {"after": found.cursor, "include_usage": "true"}
                    opening = http.stream("GET", where, params=query)
                else:
                    opening = http.stream("POST", f"{address()}{path}", json=asked)
                async with opening as response:
                    answered = True
                    if response.status_code == 503:
                        found.refused += 1
                        await response.aread()
                        await asyncio.sleep(AGAIN_S)
                        continue
                    if response.status_code != 200:
                        said = (await response.aread()).decode()
                        raise AssertionError(f"{response.status_code}: {said}; {found}")
                    await _read(response, found)
            except (httpx.NetworkError, httpx.ConnectTimeout, httpx.RemoteProtocolError):
                if answered:
                    found.cut_off += 1
                else:
                    found.refused += 1
                await asyncio.sleep(AGAIN_S)
    return found


async def _read(response: httpx.Response, found: Followed) -> None:
    found.id = found.id or response.headers["x-headrace-request-id"]
    last = time.monotonic()
    cursor = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            cursor = line.removeprefix("id: ")
        elif line == "data: [DONE]":
            found.done = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                assert event["error"]["code"] == "draining", event
                assert event["error"]["resume"]["id"] == found.id
                assert event["error"]["resume"]["after"] == (found.cursor or "0"), event
                found.handed_over += 1
                return
            text = "".join(_texts(event["choices"]))
            for choice in event["choices"]:
                found.finish = choice.get("finish_reason") or found.finish
            if event.get("usage"):
                found.tokens = event["usage"]["completion_tokens"]
            found.text += text
            if text:
                now = time.monotonic()
                found.silent_most_s = max(found.silent_most_s, now - last)
                last = now
        elif not line and cursor:  # the event is whole: only now may its id count
            found.cursor = cursor
            found.cursors.append(int(cursor))
            cursor = ""
    if not found.done:
        found.cut_off += 1


def _texts(choices: Iterable[dict[str, Any]]) -> Iterable[str]:
    for choice in choices:
        yield choice["text"] if "text" in choice else choice["delta"].get("content") or ""


def in_turn(*addresses: str) -> Callable[[], str]:
    """One address after the other, as a load balancer that knows nothing would."""
    count = 0

    def next_one() -> str:
        nonlocal count
        count += 1
        return addresses[count % len(addresses)]

    return next_one
