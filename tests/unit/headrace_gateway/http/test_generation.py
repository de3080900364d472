"""Headers around a call, and calls that end in odd ways."""

from __future__ import annotations

import httpx
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_gateway.inference.calls import Call, Delta, Done, KeepAlive, UsageTotal
from support.fake_inference import MODEL, Step, words
from support.http_edge import Edge

ASK = {"model": MODEL, "prompt": "Hi"}


async def test_many_unknown_fields_make_a_short_header(client: httpx.AsyncClient) -> None:
    body = {**ASK, **{f"{index:03d}" + "n" * 200: 1 for index in range(100)}}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert len(answer.headers["x-headrace-ignored"]) < 2000


async def test_keep_alives_leave_no_trace_in_a_whole_answer(edge: Edge) -> None:
    def script(_call: Call) -> list[Step]:
        return [KeepAlive(), *words("a", "b"), KeepAlive(), Done(UsageTotal(1, 2, 0))]

    edge.service.script = script
    async with edge.client() as client:
        answer = await client.post("/v1/completions", json=ASK)
    assert answer.json()["choices"][0]["text"] == "ab"


async def test_one_failed_choice_fails_the_call(edge: Edge) -> None:
    def script(_call: Call) -> list[Step]:
        failed = Delta(1, "", (), (), 0, FinishReason.ERROR, Code.NUMERIC_FAILURE, "NaN")
        return [*words("a"), failed, Done(UsageTotal(1, 1, 0))]

    edge.service.script = script
    async with edge.client() as client:
        answer = await client.post("/v1/completions", json={**ASK, "n": 2})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "numeric_failure")
    assert edge.service.started[0].closed == 1


async def test_an_idempotency_key_stands_for_route_and_body(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    body = {"model": MODEL, "prompt": "Hi", "stream": False, "unknown": 10**30}
    turned = dict(reversed(body.items()))
    for sent, key in ((body, "k 1"), (turned, "k 1"), (body, "k 2"), ({**body, "n": 2}, "k 1")):
        answer = await client.post("/v1/completions", json=sent, headers={"Idempotency-Key": key})
        assert answer.status_code == 200
        assert "idempotent-replayed" not in answer.headers
    first, same, other_key, other_body = (call.once for call in edge.service.calls)
    assert first is not None
    assert other_key is not None
    assert other_body is not None
    assert first == same
    assert (first.name == other_key.name, first.body == other_key.body) == (False, True)
    assert (first.name == other_body.name, first.body == other_body.body) == (True, False)


@pytest.mark.parametrize("key", ["", "k" * 256, "k\u00e9y"])
async def test_a_key_that_cannot_be_one_is_refused(client: httpx.AsyncClient, key: str) -> None:
    answer = await client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "Hi"},
        headers={b"Idempotency-Key": key.encode("latin-1")},
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Idempotency-Key"


async def test_of_two_keys_none_is_taken(client: httpx.AsyncClient) -> None:
    answer = await client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "Hi"},
        headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")],
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Send one Idempotency-Key."


async def test_a_replayed_answer_says_so_and_has_the_first_ones_id(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.replays = "cmpl-first"
    answer = await client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": "Hi"},
        headers={"Idempotency-Key": "k"},
    )
    assert answer.headers["idempotent-replayed"] == "true"
    assert answer.headers["x-headrace-request-id"] == answer.json()["id"] == "cmpl-first"
