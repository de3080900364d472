"""Bodies: what is JSON for us, and what each other thing is called."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from headrace_gateway.http.body import MAX_DEPTH, parse_object, place_name
from headrace_gateway.http.errors import HttpError
from hypothesis import given
from hypothesis import strategies as st
from support.fake_inference import KEY, FakeHttpSettings
from support.http_edge import Edge, Wire
from support.waiting import eventually

_FINE = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
JSON = b"Content-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"null", "object"),
        (b"[]", "object"),
        (b'"a"', "object"),
        (b'{"prompt":', "not JSON"),
        (b'{"prompt":"\xff\xfe"}', "UTF-8"),
        (b'{"a":1,"a":2}', "twice"),
        (b'{"b":{"a":1,"a":2}}', "twice"),
        (b'{"b":[{"a":1},{"\\u0061":1,"a" :2}]}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b'{"a":-Infinity}', "Infinity"),
        (b'{"a":1e400}', "too large"),
        (b'{"a":' + b"9" * 400 + b"}", "infinity"),
        (b"[" * 100_000, "nested"),
        (b'{"a":"\n"}', "not JSON"),
        (b'{"a":1}x', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
def test_what_is_no_json_object_is_refused_with_its_reason(raw: bytes, word: str) -> None:
    with pytest.raises(HttpError) as refusal:
        parse_object(raw)
    assert refusal.value.status == 400
    assert word in refusal.value.message


@pytest.mark.parametrize("escape", [r"cut \ud83d", r"\ude00 cut", r"a\u0000b", r"\ud83dx"])
def test_half_a_character_or_a_nul_is_named_by_its_place(escape: str) -> None:
    raw = b'{"messages":[{"role":"user","content":"' + escape.encode() + b'"}]}'
    with pytest.raises(HttpError) as refusal:
        parse_object(raw)
    assert refusal.value.param == "messages[0].content"


def test_a_key_with_half_a_character_is_refused() -> None:
    with pytest.raises(HttpError):
        parse_object(rb'{"metadata":{"\ud800":1}}')


def test_a_large_body_is_refused_without_a_place() -> None:
    text = b"x" * 300_000
    for raw in (b'{"a":"' + text + b'","a":1}', b'{"a":"' + text + rb'\ud83d"}'):
        with pytest.raises(HttpError, match="not JSON") as refusal:
            parse_object(raw)
        assert refusal.value.param is None


def test_names_inside_strings_are_no_names() -> None:
    body: dict[str, object] = {"a": '"a": 1, "a"', "b": [{"a": '\\"a\\":'}], "c": {"a": []}}
    assert parse_object(json.dumps(body).encode()) == body


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(_FINE),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(_FINE), inner),
        max_leaves=20,
    )
)
def test_what_is_written_is_read(value: object) -> None:
    assert parse_object(json.dumps({"a": value}).encode()) == {"a": value}
    assert parse_object(json.dumps({"a": value}, ensure_ascii=False).encode()) == {"a": value}


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_object(rb'{"a":"\ud83d\ude00"}') == {"a": "😀"}


def test_brackets_inside_strings_do_not_count_as_depth() -> None:
    text = '["{' * 1000 + '\\"'
    assert parse_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_depth_is_refused_only_beyond_the_limit() -> None:
    fits = MAX_DEPTH - 1
    parse_object(b'{"a":' + b"[" * fits + b"]" * fits + b"}")
    with pytest.raises(HttpError, match="nested"):
        parse_object(b'{"a":' + b"[" * (fits + 1) + b"]" * (fits + 1) + b"}")


def test_many_shallow_brackets_are_no_depth() -> None:
    body = {"a": [[1]] * 1000}
    assert parse_object(json.dumps(body).encode()) == body


def test_a_place_is_written_as_a_path() -> None:
    assert place_name(("messages", 0, "content", 1, "text")) == "messages[0].content[1].text"
    assert place_name(()) is None


@pytest.mark.parametrize(
    "content_type",
    [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"],
)
async def test_other_content_types_are_415(
    client: httpx.AsyncClient, content_type: str | None
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await client.post("/v1/completions", content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["message"]


async def test_a_compressed_body_is_415(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    answer = await client.post("/v1/completions", content=b"{}", headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "application/x+json"])
async def test_json_types_are_taken(client: httpx.AsyncClient, content_type: str) -> None:
    answer = await client.post(
        "/v1/completions",
        content=b'{"model":"m","prompt":"a"}',
        headers={"content-type": content_type},
    )
    assert answer.status_code == 200


async def test_a_declared_length_over_the_limit_is_413_without_reading(wire: Wire) -> None:
    await wire.send(HEAD + JSON + b"Content-Length: 100000000\r\n\r\n")
    status, _, body = await wire.answer()
    assert status == 413
    assert json.loads(body)["error"]["code"] == "body_too_large"


async def test_a_chunked_body_over_the_limit_is_413(wire: Wire, edge: Edge) -> None:
    await wire.send(HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
    piece = b"x" * 32 * 1024
    for _ in range(3):
        await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
    status, _, _ = await wire.answer()
    assert status == 413
    assert not edge.service.calls


async def test_a_slow_body_is_408_and_the_connection_closes(edge: Edge) -> None:
    edge.settings = FakeHttpSettings(body_timeout_s=0.05)
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(60)
        raise AssertionError("the wait is cut before")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope: dict[str, object] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [
            (b"authorization", f"Bearer {KEY}".encode()),
            (b"content-type", b"application/json"),
        ],
    }
    await edge.build()(scope, receive, send)  # pyright: ignore[reportArgumentType]
    assert sent[0]["status"] == 408
    headers = dict(sent[0]["headers"])  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    assert headers[b"connection"] == b"close"
    assert headers[b"x-should-retry"] == b"false"


async def test_a_client_that_leaves_while_sending_starts_nothing(wire: Wire, edge: Edge) -> None:
    await wire.send(HEAD + JSON + b"Content-Length: 100\r\n\r\n{")
    await asyncio.sleep(0.05)
    await wire.close()
    await eventually(lambda: b'status="499"' in edge.metrics.registry.exposition())
    assert not edge.service.calls
