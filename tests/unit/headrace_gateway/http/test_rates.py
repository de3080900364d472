"""What is left of a key's minute, in headers."""

from __future__ import annotations

import httpx
from headrace_gateway.errors import RateLimitExceeded
from headrace_gateway.http.rates import rate_headers
from headrace_gateway.inference.calls import Bucket, RateState
from support.http_edge import Edge

STATE = RateState(Bucket(60, 59, 1.0), Bucket(1000, 250, 45.5))
HEADERS = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "59",
    "x-ratelimit-reset-requests": "1s",
    "x-ratelimit-limit-tokens": "1000",
    "x-ratelimit-remaining-tokens": "250",
    "x-ratelimit-reset-tokens": "45.5s",
}
ASK = {"model": "m", "prompt": "a"}


def test_only_what_has_a_limit_has_headers() -> None:
    assert rate_headers(None) == {}
    assert rate_headers(STATE) == HEADERS
    only = rate_headers(RateState(None, STATE.tokens))
    assert set(only) == {name for name in HEADERS if name.endswith("tokens")}


async def test_answers_and_streams_carry_them(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.rates = STATE
    for stream in (False, True):
        answer = await client.post("/v1/completions", json={**ASK, "stream": stream})
        assert HEADERS.items() <= dict(answer.headers).items()


async def test_a_refusal_carries_them_beside_the_advice(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.refusal = RateLimitExceeded("too many", retry_after_s=7, rates=STATE)
    answer = await client.post("/v1/completions", json=ASK)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert HEADERS.items() <= dict(answer.headers).items()
