"""``/v1/requests``: look, cancel, read on."""

from __future__ import annotations

import httpx
import pytest
from support.fake_inference import FakeRequestInfo
from support.http_edge import Edge


async def test_an_own_request_tells_its_state(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.infos["cmpl-9"] = FakeRequestInfo("cmpl-9")
    answer = await client.get("/v1/requests/cmpl-9")
    assert answer.json() == {
        "id": "cmpl-9",
        "object": "request",
        "model": "small/model",
        "status": "finished",
        "created": 1_800_000_000,
        "attempt": 1,
        "tokens": 2,
        "finish_reason": "stop",
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_running_request_has_no_end_yet(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.infos["r"] = FakeRequestInfo("r", status="running", finish=None, usage=None)
    body = (await client.get("/v1/requests/r")).json()
    assert (body["finish_reason"], body["usage"]) == (None, None)


@pytest.mark.parametrize("status", ["queued", "finished"])
async def test_delete_tells_whether_it_was_in_time(
    edge: Edge, client: httpx.AsyncClient, status: str
) -> None:
    edge.service.infos["r"] = FakeRequestInfo("r", status=status)
    answer = await client.delete("/v1/requests/r")
    assert answer.json() == {"id": "r", "object": "request", "cancelled": status == "queued"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/requests/none"),
        ("DELETE", "/v1/requests/none"),
        ("GET", "/v1/requests/none/events"),
    ],
)
async def test_an_unknown_request_is_404(client: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize(
    ("request_id", "kind"),
    [("chatcmpl-9", "chat.completion.chunk"), ("cmpl-9", "text_completion")],
)
async def test_events_go_on_in_the_request_s_own_dialect(
    edge: Edge, client: httpx.AsyncClient, request_id: str, kind: str
) -> None:
    edge.service.infos[request_id] = FakeRequestInfo(request_id)
    answer = await client.get(f"/v1/requests/{request_id}/events?after=12,9")
    assert f'"object":"{kind}"' in answer.text
    assert answer.text.endswith("data: [DONE]\n\n")
    assert edge.service.resumed == [(request_id, "12,9")]
    assert edge.service.started[0].closed == 1


async def test_usage_comes_when_asked_for(edge: Edge, client: httpx.AsyncClient) -> None:
    edge.service.infos["cmpl-9"] = FakeRequestInfo("cmpl-9")
    answer = await client.get("/v1/requests/cmpl-9/events?include_usage=true")
    assert '"total_tokens":5' in answer.text


async def test_the_last_event_id_of_a_browser_is_a_cursor(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.infos["cmpl-9"] = FakeRequestInfo("cmpl-9")
    await client.get("/v1/requests/cmpl-9/events", headers={"last-event-id": "7"})
    assert edge.service.resumed == [("cmpl-9", "7")]


@pytest.mark.parametrize(
    "query",
    ["after=x", "after=1,,2", "after=-1", "after=" + "1," * 600 + "1", "include_usage=maybe"],
)
async def test_a_bad_query_is_400(edge: Edge, client: httpx.AsyncClient, query: str) -> None:
    edge.service.infos["cmpl-9"] = FakeRequestInfo("cmpl-9")
    answer = await client.get(f"/v1/requests/cmpl-9/events?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.split("=")[0]


async def test_own_live_requests_are_listed_with_their_reasons(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    for name, status in (("a", "queued"), ("b", "finished"), ("c", "running")):
        edge.service.infos[name] = FakeRequestInfo(name, status=status, finish=None, usage=None)
    whole = (await client.get("/v1/requests")).json()
    assert (whole["object"], whole["has_more"]) == ("list", False)
    assert [(each["id"], each["reason"]) for each in whole["data"]] == [
        ("a", "queue"),
        ("c", "queue"),
    ]
    part = (await client.get("/v1/requests?limit=1")).json()
    assert (len(part["data"]), part["has_more"]) == (1, True)
    for limit in ("0", "101", "x"):
        answer = await client.get(f"/v1/requests?limit={limit}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


async def test_why_says_it_in_a_word_a_sentence_and_numbers(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.infos["a"] = FakeRequestInfo("a", status="queued")
    assert (await client.get("/v1/requests/a/why")).json() == {
        "id": "a",
        "object": "request.why",
        "status": "queued",
        "reason": "queue",
        "explanation": "It waits.",
        "waited_seconds": 1.5,
        "tokens": 0,
        "ahead": 2,
        "queued": 3,
        "engines": 1,
        "engine": None,
    }
    assert (await client.get("/v1/requests/none/why")).status_code == 404
