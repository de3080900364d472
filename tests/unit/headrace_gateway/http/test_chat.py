"""``POST /v1/chat/completions``: fields to call, events to answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_gateway.inference.calls import Call, ChatPrompt, Delta, Done, Message, UsageTotal
from support.fake_inference import MODEL, FakeHttpSettings, Step, token, words
from support.http_edge import Edge

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


NOT_OFFERED: list[tuple[str, object]] = [
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("functions", [{}]),
    ("modalities", ["audio"]),
    ("audio", {}),
    ("store", True),
    ("store", 1),
    ("service_tier", "priority"),
    ("reasoning_effort", "high"),
    ("echo", True),
    ("best_of", 2),
    ("guided_json", {}),
    ("web_search_options", {}),
]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of every data line but the last, which must be [DONE]."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_whole_answer_has_the_openai_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=ASK)
    assert answer.status_code == 200
    assert answer.json() == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": MODEL,
        "system_fingerprint": "fp_fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }
    assert answer.headers["x-request-id"] == "chatcmpl-1"


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-store, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    chunks = events(answer)
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]
        for delta, reason in [
            ({"role": "assistant", "content": ""}, None),
            ({"content": "Hel"}, None),
            ({"content": "lo"}, None),
            ({}, "stop"),
        ]
    ]
    assert all("usage" not in chunk for chunk in chunks)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_usage_comes_last_and_is_null_before(client: httpx.AsyncClient) -> None:
    body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
    *before, last = events(await client.post("/v1/chat/completions", json=body))
    assert all(chunk["usage"] is None for chunk in before)
    assert last["choices"] == []
    whole = await client.post("/v1/chat/completions", json=ASK)
    assert last["usage"] == whole.json()["usage"]


async def test_only_the_last_chunk_of_a_delta_carries_the_cursor(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    ids = [
        next((line for line in event.splitlines() if line.startswith("id: ")), None)
        for event in answer.text.strip().split("\n\n")
    ]
    assert ids == [None, "id: 1", None, "id: 2", None]


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_keep_their_index(edge: Edge, stream: bool) -> None:
    def script(_call: Call) -> list[Step]:
        one, two = words("a", "b"), words("x", "y", index=1, finish=FinishReason.LENGTH)
        return [one[0], two[0], two[1], one[1], Done(UsageTotal(3, 4, 0))]

    edge.service.script = script
    async with edge.client() as client:
        answer = await client.post("/v1/chat/completions", json={**ASK, "n": 2, "stream": stream})
    texts, reasons = {0: "", 1: ""}, dict[int, str]()
    if stream:
        for chunk in events(answer):
            [choice] = chunk["choices"]
            texts[choice["index"]] += choice["delta"].get("content", "")
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    else:
        for choice in answer.json()["choices"]:
            texts[choice["index"]] = choice["message"]["content"]
            reasons[choice["index"]] = choice["finish_reason"]
    assert texts == {0: "ab", 1: "xy"}
    assert reasons == {0: "stop", 1: "length"}


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_name_tokens_bytes_and_candidates(edge: Edge, stream: bool) -> None:
    half = token(b"\xf0\x9f", float("-inf"))

    def script(_call: Call) -> list[Step]:
        return [
            Delta(0, "", (1,), (half,), 1),
            Delta(0, "a", (2,), (token("a"),), 2, finish=FinishReason.STOP),
            Done(UsageTotal(1, 2, 0)),
        ]

    edge.service.script = script
    body = {**ASK, "logprobs": True, "top_logprobs": 2, "stream": stream}
    async with edge.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
    if stream:
        content: list[dict[str, Any]] = [
            item
            for chunk in events(answer)
            for choice in chunk["choices"]
            if choice["logprobs"]
            for item in choice["logprobs"]["content"]
        ]
    else:
        content = answer.json()["choices"][0]["logprobs"]["content"]
    assert content == [
        {
            "token": "bytes:\\xf0\\x9f",
            "logprob": -9999.0,
            "bytes": [0xF0, 0x9F],
            "top_logprobs": [],
        },
        {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []},
    ]
    assert edge.service.calls[0].sampling.logprobs == 2


async def test_fields_reach_the_service(edge: Edge, client: httpx.AsyncClient) -> None:
    body = {
        **ASK,
        "messages": [
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "n": 2,
        "max_completion_tokens": 5,
        "min_tokens": 1,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "logit_bias": {"17": -2, "0": 1.5},
        "seed": 9,
        "stop": "x",
        "stop_token_ids": [4],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "cache_salt": "s",
        "chat_template_kwargs": {"thinking": True},
    }  # fmt: skip
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await client.post(
        "/v1/chat/completions",
        json=body,
        headers={"traceparent": trace, "x-headrace-deadline-ms": "1500"},
    )
    assert answer.status_code == 200
    [call] = edge.service.calls
    assert call.kind == "chat"
    assert call.prompts == (ChatPrompt((Message("system", "Be short."), Message("user", "a\nb"))),)
    assert call.sampling.max_tokens == 5
    assert call.sampling.logit_bias == {17: -2.0, 0: 1.5}
    assert (call.sampling.stop, call.sampling.stop_token_ids) == (("x",), (4,))
    assert (call.sampling.seed, call.sampling.n, call.sampling.top_k) == (9, 2, 3)
    assert call.sampling.temperature == 1.0
    assert call.sampling.ignore_eos
    assert call.sampling.include_stop
    assert (call.cache_salt, call.fields) == (b"s", {"thinking": True})
    assert (call.deadline_s, call.span.traceparent) == (1.5, trace)


async def test_null_is_the_same_as_absent(edge: Edge, client: httpx.AsyncClient) -> None:
    names = [
        "max_tokens",
        "temperature",
        "top_p",
        "n",
        "stop",
        "seed",
        "logit_bias",
        "logprobs",
        "stream",
        "stream_options",
        "user",
        "tools",
        "tool_choice",
        "response_format",
        "max_completion_tokens",
        "top_logprobs",
        "metadata",
        "store",
        "service_tier",
        "reasoning_effort",
        "functions",
        "function_call",
        "parallel_tool_calls",
        "modalities",
    ]
    nulls = await client.post("/v1/chat/completions", json={**ASK, **dict.fromkeys(names)})
    plain = await client.post("/v1/chat/completions", json=ASK)
    assert (nulls.status_code, plain.status_code) == (200, 200)
    first, second = edge.service.calls
    assert first.sampling == second.sampling
    assert "x-headrace-ignored" not in nulls.headers


@pytest.mark.parametrize(
    ("field", "value"),
    NOT_OFFERED,
)
async def test_what_is_not_offered_is_refused_by_name(
    client: httpx.AsyncClient, field: str, value: object
) -> None:
    answer = await client.post("/v1/chat/completions", json={**ASK, field: value, "stream": True})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", field)


async def test_neutral_values_are_taken(client: httpx.AsyncClient) -> None:
    body = {
        **ASK,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "store": False,
        "n": 1,
        "best_of": 1,
    }
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hello"}, "messages"),
        ({"n": "1"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": True}, "top_p"),
        ({"stream": "yes"}, "stream"),
        ({"stop": 5}, "stop"),
        ({"stop": [7]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "a"}}, "logit_bias"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"user": 5}, "user"),
        ({"cache_salt": "x" * 300}, "cache_salt"),
    ],
)
async def test_wrong_fields_are_400_by_name(
    edge: Edge, client: httpx.AsyncClient, change: dict[str, object], param: str
) -> None:
    raw = json.dumps({**ASK, **change})
    answer = await client.post(
        "/v1/chat/completions", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert not edge.service.calls


@pytest.mark.parametrize("given", ["0", "-1", "1e3", "x", "", "99999999999", "٣"])
async def test_a_bad_deadline_is_400(client: httpx.AsyncClient, given: str) -> None:
    answer = await client.post(
        "/v1/chat/completions",
        json=ASK,
        headers={"x-headrace-deadline-ms": given.encode()},  # pyright: ignore[reportArgumentType]
    )
    assert answer.status_code == 400


async def test_unknown_fields_are_named_in_a_header(client: httpx.AsyncClient) -> None:
    for stream in (False, True):
        body = {**ASK, "stream": stream, "x_trace": "abc", "wäre\r\n": 1}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert answer.headers["x-headrace-ignored"] == "w?re??, x_trace"


async def test_strict_fields_refuses_unknown_ones(edge: Edge) -> None:
    edge.settings = FakeHttpSettings(strict_fields=True)
    async with edge.client() as client:
        strange = await client.post("/v1/chat/completions", json={**ASK, "x_trace": 1})
        hints = await client.post("/v1/chat/completions", json={**ASK, "user": "u"})
    assert (strange.status_code, strange.json()["error"]["param"]) == (400, "x_trace")
    assert hints.status_code == 200


@pytest.mark.parametrize(
    ("finish", "code", "status"),
    [
        (FinishReason.CANCELLED, None, 499),
        (FinishReason.DEADLINE, None, 408),
        (FinishReason.ERROR, Code.ENGINE_FAILED, 500),
    ],
)
async def test_a_bad_end_is_an_error_whole_and_streamed(
    edge: Edge, finish: FinishReason, code: Code | None, status: int
) -> None:
    def script(_call: Call) -> list[Step]:
        end = Delta(0, "", (), (), 1, finish=finish, code=code, message="it broke")
        return [Delta(0, "a", (1,), (), 1), end, Done(UsageTotal(1, 1, 0))]

    edge.service.script = script
    async with edge.client() as client:
        whole = await client.post("/v1/chat/completions", json=ASK)
        stream = await client.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert whole.status_code == status
    assert whole.json()["error"]["message"] == "it broke"
    lines = [line for line in stream.text.splitlines() if line.startswith("data: ")]
    assert json.loads(lines[-1][6:]) == whole.json()
    assert 'finish_reason":"' not in stream.text
    assert [running.closed for running in edge.service.started] == [1, 1]
