"""What is counted, logged and traced of a request is there before its answer is whole."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from headrace_kit.traces import NoSpan, Span, Tracing
from starlette.types import Message
from structlog.testing import capture_logs
from support.fake_inference import KEY
from support.http_edge import Edge

ASK = {"model": "m", "prompt": "a"}
COUNTED = "headrace_gateway_http_requests_total"


class Spans(Tracing):
    """Counts the spans that have ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = 0

    @property
    def on(self) -> bool:
        return True

    def begin(self, name: str, **_: Any) -> Span:
        return Counted(self)


class Counted(NoSpan):
    def __init__(self, spans: Spans) -> None:
        super().__init__()
        self._spans = spans

    def end(self, at_ns: int | None = None) -> None:
        self._spans.ended += 1


def scope_of(method: str, path: str, key: str | None) -> dict[str, Any]:
    headers = [(b"content-type", b"application/json")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "key", "last"),
    [
        ("POST", "/v1/completions", ASK, KEY, b'"usage"'),
        ("POST", "/v1/completions", {**ASK, "stream": True}, KEY, b"[DONE]"),
        ("POST", "/v1/completions", {**ASK, "n": "x"}, KEY, b'"error"'),
        ("GET", "/v1/models", None, KEY, b'"data"'),
        ("GET", "/v1/models", None, None, b'"error"'),
        ("GET", "/nowhere", None, KEY, b'"error"'),
    ],
)
async def test_who_has_the_answer_whole_finds_it_counted_logged_and_traced(
    edge: Edge, method: str, path: str, body: object, key: str | None, last: bytes
) -> None:
    wanted: list[Message] = [
        {"type": "http.request", "body": json.dumps(body).encode() if body else b""}
    ]
    whole: list[tuple[bytes, float, int, int]] = []
    edge.tracing = spans = Spans()
    app = edge.build()
    with capture_logs() as said:

        def counted() -> float:
            return sum(
                sample.value
                for family in edge.metrics.registry.families()
                for sample in family.samples
                if sample.name == COUNTED
            )

        async def receive() -> Message:
            if not wanted:
                await asyncio.Event().wait()
            return wanted.pop(0)

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                logged = sum(each["event"] == "http.finished" for each in said)
                whole.append((message["body"], counted(), logged, spans.ended))

        await app(scope_of(method, path, key), receive, send)
    behind_the_door = path.startswith("/v1/") and key is not None
    [(words, *told)] = whole
    assert last in words
    assert told == [1, 1, behind_the_door]
    assert (counted(), spans.ended) == (1, behind_the_door), "and only once"
