"""``POST /v1/completions``: prompts of every shape, and their answers."""

from __future__ import annotations

import json

import httpx
import pytest
from headrace_contracts.codes import FinishReason
from headrace_gateway.inference.calls import (
    Call,
    Delta,
    Done,
    TextPrompt,
    TokenPrompt,
    UsageTotal,
)
from support.fake_inference import MODEL, Step, token
from support.http_edge import Edge

ASK = {"model": MODEL, "prompt": "Hi"}


SHAPELESS: list[tuple[object, str]] = [
    (None, "prompt"),
    ("", "prompt"),
    ([""], "prompt[0]"),
    ([], "prompt"),
    ([[]], "prompt[0]"),
    (["", "Hi"], "prompt[0]"),
    (["Hi", ""], "prompt[1]"),
    (5, "prompt"),
    ({"a": 1}, "prompt"),
    ([1, "a"], "prompt"),
    ([True], "prompt[0]"),
    ([1.5], "prompt[0]"),
    ([10**30], "prompt[0]"),
    ([[1, None]], "prompt[0]"),
    (["a", 1], "prompt[1]"),
]


async def test_a_whole_answer_has_the_openai_form(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json=ASK)
    body = answer.json()
    assert (body["id"], body["object"]) == ("cmpl-1", "text_completion")
    assert body["choices"] == [
        {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"]["total_tokens"] == 5


async def test_a_stream_gives_text_and_the_reason_with_the_last(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/completions", json={**ASK, "stream": True})
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == [
        ("Hel", None),
        ("lo", "stop"),
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", [TextPrompt("a")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2], [TokenPrompt([1, 2])]),
        ([[1], [2, 3]], [TokenPrompt([1]), TokenPrompt([2, 3])]),
        (["a", [2, 3]], [TextPrompt("a"), TokenPrompt([2, 3])]),
        ([-1, 2**63], [TokenPrompt([-1, 2**63])]),
    ],
)
async def test_prompts_of_every_shape_reach_the_service(
    edge: Edge, client: httpx.AsyncClient, prompt: object, prompts: list[object]
) -> None:
    answer = await client.post("/v1/completions", json={**ASK, "prompt": prompt})
    assert answer.status_code == 200
    assert list(edge.service.calls[0].prompts) == prompts


@pytest.mark.parametrize(
    ("prompt", "param"),
    SHAPELESS,
)
async def test_prompts_of_no_shape_are_400(
    edge: Edge, client: httpx.AsyncClient, prompt: object, param: str
) -> None:
    answer = await client.post("/v1/completions", json={**ASK, "prompt": prompt})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not edge.service.calls


async def test_sixteen_tokens_are_the_default(edge: Edge, client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json=ASK)
    await client.post("/v1/completions", json={**ASK, "max_tokens": None})
    await client.post("/v1/completions", json={**ASK, "max_tokens": 3})
    assert [call.sampling.max_tokens for call in edge.service.calls] == [16, 16, 3]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
)
async def test_wrong_fields_are_400_by_name(
    client: httpx.AsyncClient, change: dict[str, object], param: str
) -> None:
    answer = await client.post("/v1/completions", json={**ASK, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_echo_and_best_of_n_reach_the_service(edge: Edge, client: httpx.AsyncClient) -> None:
    body = {**ASK, "echo": True, "n": 2, "best_of": 2, "suffix": None}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert edge.service.calls[0].echo
    assert edge.service.calls[0].sampling.n == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_columns_with_offsets_in_the_text(edge: Edge, stream: bool) -> None:
    pieces = [token("é"), token(b"\xf0\x9f"), token(b"\x98\x80"), token("b")]

    def script(_call: Call) -> list[Step]:
        return [
            Delta(0, "é", (1,), tuple(pieces[:2]), 2),
            Delta(0, "😀b", (2,), tuple(pieces[2:]), 4, finish=FinishReason.LENGTH),
            Done(UsageTotal(1, 4, 0)),
        ]

    edge.service.script = script
    async with edge.client() as client:
        answer = await client.post("/v1/completions", json={**ASK, "logprobs": 1, "stream": stream})
    if stream:
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        found = [json.loads(line)["choices"][0]["logprobs"] for line in lines]
    else:
        found = [answer.json()["choices"][0]["logprobs"]]
    offsets = [offset for columns in found for offset in columns["text_offset"]]
    names = [name for columns in found for name in columns["tokens"]]
    assert offsets == [0, 1, 1, 2]
    assert names == ["é", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "b"]
    assert found[0]["top_logprobs"][0] == {"é": -0.5}
    assert found[0]["token_logprobs"][0] == -0.5


async def test_unknown_fields_are_named_in_a_header(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={**ASK, "x_trace": "abc"})
    assert (answer.status_code, answer.headers["x-headrace-ignored"]) == (200, "x_trace")
