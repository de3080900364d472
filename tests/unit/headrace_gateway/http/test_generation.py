"""Headers around a call, and calls that end in odd ways."""

from __future__ import annotations

import httpx
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
