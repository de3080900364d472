"""Streams on a real socket: what is written when, and what a departure does."""

from __future__ import annotations

import asyncio
import json

import pytest
from headrace_gateway.errors import BackendUnavailable, HandedOver
from headrace_gateway.http.sse import MAX_CURSOR, data_event, place_of
from headrace_gateway.inference.calls import Call, Done, KeepAlive, UsageTotal
from structlog.testing import capture_logs
from support.fake_inference import KEY, MODEL, Step, words
from support.http_edge import Edge, Wire
from support.waiting import eventually

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}


def post(path: str, body: dict[str, object]) -> bytes:
    raw = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    ).encode() + raw


async def test_deltas_are_written_as_they_come(wire: Wire, edge: Edge) -> None:
    gate = asyncio.Event()

    def script(_call: Call) -> list[Step]:
        first, second = words("a", "b")
        return [first, gate, second, Done(UsageTotal(1, 2, 0))]

    edge.service.script = script
    await wire.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
    status, _ = await wire.head()
    first = await wire.chunk()
    assert status == 200
    assert b'"content":"a"' in first
    gate.set()
    assert b'"content":"b"' in await wire.chunk()
    assert await wire.chunk() == b"data: [DONE]\n\n"
    assert await wire.chunk() == b""
    # what the server does after its last byte
    await eventually(lambda: edge.service.started[0].closed == 1)


def test_an_endless_cursor_is_left_out() -> None:
    assert data_event(b"{}", cursor="1,2") == b"id: 1,2\ndata: {}\n\n"
    assert data_event(b"{}", cursor="1," * MAX_CURSOR) == b"data: {}\n\n"
    assert data_event(b"{}") == b"data: {}\n\n"


async def test_silence_is_filled_with_comments(wire: Wire, edge: Edge) -> None:
    def script(_call: Call) -> list[Step]:
        return [KeepAlive(), *words("a"), Done(UsageTotal(1, 1, 0))]

    edge.service.script = script
    await wire.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
    await wire.head()
    assert await wire.chunk() == b": ping\n\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_closes_its_call(
    wire: Wire, edge: Edge, path: str, stream: bool
) -> None:
    never = asyncio.Event()

    def script(_call: Call) -> list[Step]:
        first, second = words("a", "b")
        return [first, never, second, Done(UsageTotal(1, 2, 0))]

    edge.service.script = script
    await wire.send(post(path, {**CHAT, "prompt": "Hi", "stream": stream}))
    if stream:
        await wire.head()
        await wire.chunk()
    else:
        await eventually(edge.service.began.is_set)
    await wire.close()
    running = edge.service.started[0]
    await eventually(lambda: b'status="499"' in edge.metrics.registry.exposition())
    assert running.closed == 1
    assert not running.ended


async def test_a_failure_in_the_middle_is_an_event_and_no_done(wire: Wire, edge: Edge) -> None:
    def script(_call: Call) -> list[Step]:
        return [*words("a", "b")[:1], BackendUnavailable("The queue is gone.")]

    edge.service.script = script
    await wire.send(post("/v1/completions", {"model": MODEL, "prompt": "Hi", "stream": True}))
    await wire.head()
    await wire.chunk()
    event = await wire.chunk()
    assert json.loads(event[6:])["error"]["code"] == "backend_unavailable"
    assert await wire.chunk() == b""


async def test_a_stream_that_is_handed_over_ends_with_the_place_to_read_on_at(
    wire: Wire, edge: Edge
) -> None:
    edge.service.script = lambda _call: [words("a", "b")[0], HandedOver(within_s=15)]
    await wire.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
    await wire.head()
    assert b"id: 1\n" in await wire.chunk()
    event = await wire.chunk()
    error = json.loads(event.removeprefix(b"data: "))["error"]
    [call] = edge.service.calls
    assert call.resumable
    assert error["code"] == "draining"
    assert "within 15 s" in error["message"]
    assert error["resume"] == {
        "id": call.request_id,
        "after": "1",
        "path": f"/v1/requests/{call.request_id}/events?after=1",
    }
    assert await wire.chunk() == b""


def test_a_stream_without_cursors_has_no_place_to_read_on_at() -> None:
    assert place_of("r", "1," * MAX_CURSOR) is None


async def test_a_fault_of_ours_in_the_middle_is_an_event_without_its_inside(
    wire: Wire, edge: Edge
) -> None:
    def script(_call: Call) -> list[Step]:
        return [*words("a", "b")[:1], ZeroDivisionError("secret")]

    edge.service.script = script
    with capture_logs() as logs:
        await wire.send(post("/v1/completions", {"model": MODEL, "prompt": "Hi", "stream": True}))
        await wire.head()
        await wire.chunk()
        event = await wire.chunk()
        assert await wire.chunk() == b""
        await eventually(lambda: "http.failed" in [line["event"] for line in logs])
    assert json.loads(event[6:])["error"]["code"] == "internal"
    assert b"secret" not in event
    assert edge.service.started[0].closed == 1


async def test_who_does_not_read_gets_the_rest_by_and_by(wire: Wire, edge: Edge) -> None:
    """Pieces are written at once until the connection is full; the role comes once all the same."""
    piece = "x" * 50_000

    def script(_call: Call) -> list[Step]:
        return [*words(*[piece] * 400), Done(UsageTotal(1, 400, 0))]

    edge.service.script = script
    await wire.send(post("/v1/chat/completions", {**CHAT, "stream": True}))
    await wire.head()
    [running] = edge.service.started
    await eventually(running.refused.is_set)
    assert running.steps, "not all fits into the connection"
    text, roles = 0, 0
    while (chunk := await wire.chunk()) != b"data: [DONE]\n\n":
        text += chunk.count(piece.encode())
        roles += chunk.count(b'"role"')
    assert (text, roles) == (400, 1)
    assert await wire.chunk() == b""
