"""Connections that speak badly or not at all."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import sys

import pytest
import uvicorn
from headrace_gateway.http import protocol
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_inference import KEY, MODEL, Step, hello, words
from support.http_edge import Edge, Wire
from support.waiting import PATIENCE_S, eventually
from uvicorn.server import ServerState

MODELS = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
UNKEYED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"


def completion(*, stream: bool) -> bytes:
    body = json.dumps({"model": MODEL, "prompt": "x", "stream": stream}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Line(asyncio.Transport):
    """A transport whose other end the test is."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def on_line(edge: Edge) -> tuple[Line, protocol.EdgeProtocol]:
    config = uvicorn.Config(edge.build(), log_config=None, access_log=False, lifespan="off")
    line, spoken = Line(), protocol.EdgeProtocol(config, ServerState(), {})
    spoken.connection_made(line)
    return line, spoken


def pour(line: Line, spoken: protocol.EdgeProtocol, piece: bytes) -> None:
    """Gives ``piece`` again and again, until that is too much."""
    poured = 0
    while not line.closed:
        assert poured <= protocol.MAX_HELD_BYTES
        spoken.data_received(piece)
        poured += len(piece)
    spoken.connection_lost(None)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
    ],
    ids=["tls", "nul", "length"],
)
async def test_what_is_no_http_is_told_in_our_form(wire: Wire, raw: bytes) -> None:
    await wire.send(raw)
    status, headers, body = await wire.answer()
    assert status == 400
    assert headers["connection"] == "close"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert await wire.reader.read() == b""


async def connected(address: tuple[str, int], data: bytes) -> Wire:
    """A connection whose first bytes are there before the server, on this loop, hears of it."""
    line = socket.create_connection(address)
    line.sendall(data)
    line.setblocking(False)
    return Wire(*await asyncio.open_connection(sock=line))


@pytest.mark.parametrize("before", [b"", b"GET /v1/models HTTP/1.1\r\nHost: "])
async def test_a_head_that_does_not_come_is_408(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int], before: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    wire = await connected(address, before)
    status, _, body = await wire.answer()
    await wire.close()
    assert status == 408
    assert json.loads(body)["error"]["code"] == "body_timeout"


async def test_a_second_request_must_not_dawdle_either(
    monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    await wire.send(MODELS)
    status, _, _ = await wire.answer()
    assert status == 200
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    await wire.send(b"GET /v1/mod")
    status, _, _ = await wire.answer()
    assert status == 408


async def test_a_whole_head_stops_the_clock(
    monkeypatch: pytest.MonkeyPatch, address: tuple[str, int]
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.2)
    wire = await connected(address, MODELS)
    assert (await wire.answer())[0] == 200
    await asyncio.sleep(0.3)
    await wire.send(MODELS)
    assert (await wire.answer())[0] == 200
    await wire.close()


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"a" * 1_000),
        (b"GET /", b"a" * 1_000),
        (b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 100),
    ],
    ids=["a-value", "a-path", "many"],
)
async def test_a_head_without_end_is_431(edge: Edge, before: bytes, piece: bytes) -> None:
    line, spoken = on_line(edge)
    spoken.data_received(before)
    pour(line, spoken, piece)
    head, _, body = line.said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["message"]


async def test_trailers_without_end_are_431(edge: Edge) -> None:
    line, spoken = on_line(edge)
    spoken.data_received(UNKEYED + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
    await eventually(lambda: b"invalid_api_key" in line.said)
    pour(line, spoken, b"X: y\r\n" * 100)
    assert b"HTTP/1.1 431 " in line.said


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_is_seen_also_with_a_request_behind(
    edge: Edge, address: tuple[str, int], stream: bool
) -> None:
    edge.service.script = lambda _call: [asyncio.Event()]
    wire = Wire(*await asyncio.open_connection(*address))
    await wire.send(completion(stream=stream) + MODELS)
    await edge.service.began.wait()
    await wire.close()
    async with asyncio.timeout(PATIENCE_S):
        await edge.service.started[0].gone.wait()


async def test_requests_behind_one_are_answered_in_turn(edge: Edge, wire: Wire) -> None:
    first = asyncio.Event()
    edge.service.script = lambda call: [first, *hello(call)]
    await wire.send(completion(stream=False) + MODELS * (2 * protocol.MAX_PIPELINED))
    await edge.service.began.wait()
    first.set()
    assert b"text_completion" in (await wire.answer())[2]
    for _ in range(2 * protocol.MAX_PIPELINED):
        assert MODEL.encode() in (await wire.answer())[2]


UPGRADE = (
    b"Host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEA\r\n"
)


@pytest.mark.parametrize("piece", ["all", "heads", 7])
async def test_who_asks_for_another_protocol_is_answered_in_this_one(
    edge: Edge, wire: Wire, piece: str | int
) -> None:
    edge.service.script = hello
    asked = completion(stream=False).replace(b"Host: x\r\n", UPGRADE)
    sent = asked + MODELS.replace(b"Host: x\r\n", UPGRADE) + asked + MODELS
    if piece == "heads":
        pieces = [line + b"\r\n\r\n" for line in sent.split(b"\r\n\r\n")[:-1]]
    else:
        step = len(sent) if isinstance(piece, str) else piece
        pieces = [sent[at : at + step] for at in range(0, len(sent), step)]
    for each in pieces:
        await wire.send(each)
    for _ in range(2):
        status, _, answer = await wire.answer()
        assert (status, json.loads(answer)["object"]) == (200, "text_completion")
        status, _, answer = await wire.answer()
        assert (status, MODEL.encode() in answer) == (200, True)
    assert len(edge.service.calls) == 2


async def test_many_who_ask_for_it_in_one_piece_are_answered_one_after_another(edge: Edge) -> None:
    many = sys.getrecursionlimit() + 1
    line, spoken = on_line(edge)
    spoken.data_received(MODELS.replace(KEY.encode(), b"x").replace(b"Host: x\r\n", UPGRADE) * many)
    await eventually(lambda: line.said.count(b"HTTP/1.1 401 ") == many)
    spoken.connection_lost(None)


async def test_a_tunnel_is_refused(wire: Wire) -> None:
    await wire.send(b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n")
    status, _, body = await wire.answer()
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_request")


async def test_no_words_of_ours_stand_in_the_middle_of_an_answer(edge: Edge, wire: Wire) -> None:
    script: list[Step] = [*words("Hel", "lo")[:1], asyncio.Event()]
    edge.service.script = lambda _call: script
    await wire.send(completion(stream=True))
    assert (await wire.head())[0] == 200
    assert b"Hel" in await wire.chunk()
    await wire.send(b"\0\r\n")
    async with asyncio.timeout(PATIENCE_S):
        assert await wire.reader.read() == b""
        await edge.service.started[0].gone.wait()


async def test_a_head_that_does_not_come_ends_no_answer(
    monkeypatch: pytest.MonkeyPatch, edge: Edge, wire: Wire
) -> None:
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    edge.service.script = lambda call: [0.3, *hello(call)]
    await wire.send(completion(stream=False) + MODELS[:-3])
    assert (await wire.answer())[0] == 200
    assert (await wire.answer())[0] == 408


async def test_the_rest_of_a_body_that_nobody_reads_may_come_late_but_not_never(
    monkeypatch: pytest.MonkeyPatch, wire: Wire
) -> None:
    await wire.send(UNKEYED + b"Content-Length: 4\r\n\r\nab")
    assert (await wire.answer())[0] == 401
    await wire.send(b"cd" + MODELS)
    assert (await wire.answer())[0] == 200
    monkeypatch.setattr(protocol, "HEAD_WITHIN_S", 0.05)
    await wire.send(UNKEYED + b"Content-Length: 4\r\n\r\nab")
    assert (await wire.answer())[0] == 401
    assert (await wire.answer())[0] == 408


async def test_a_connection_is_read_on_while_few_requests_wait_for_their_turn(edge: Edge) -> None:
    line, spoken = on_line(edge)
    spoken.data_received(MODELS * protocol.MAX_PIPELINED)
    assert not spoken.flow.read_paused  # whoever leaves is seen by reading alone
    spoken.data_received(MODELS)
    assert spoken.flow.read_paused
    await eventually(lambda: line.said.count(b"HTTP/1.1 200") > protocol.MAX_PIPELINED)
    assert not spoken.flow.read_paused
    spoken.connection_lost(None)


async def test_what_waits_in_one_piece_is_bounded_and_all_of_it_answered(edge: Edge) -> None:
    many = 2_000
    line, spoken = on_line(edge)
    spoken.data_received(b"GET / HTTP/1.1\r\n\r\n" * many)
    assert len(spoken.pipeline) < many // 5
    assert spoken.flow.read_paused
    await eventually(lambda: line.said.count(b"HTTP/1.1 401 ") == many)
    assert not spoken.flow.read_paused
    spoken.connection_lost(None)


CHUNKED = b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"


@pytest.mark.parametrize("apart", [False, True])
async def test_a_trailer_is_no_header(wire: Wire, apart: bool) -> None:
    await wire.send(UNKEYED + CHUNKED + b"2\r\n{}\r\n0\r\n")
    if apart:
        await asyncio.sleep(0.05)
    await wire.send(f"Authorization: Bearer {KEY}\r\n\r\n".encode())
    assert (await wire.answer())[0] == 401


async def test_trailers_that_come_with_the_head_are_no_headers(edge: Edge) -> None:
    line, spoken = on_line(edge)
    trailer = f"Authorization: Bearer {KEY}\r\n\r\n".encode()
    spoken.data_received(UNKEYED + CHUNKED + b"2\r\n{}\r\n0\r\n" + trailer)
    await eventually(lambda: b"\r\n\r\n" in line.said)
    assert line.said.startswith(b"HTTP/1.1 401 ")
    spoken.connection_lost(None)


@pytest.mark.parametrize("body", [b"x\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"2\n{}\n0\n\n"])
async def test_a_body_that_is_no_http_is_told_too(wire: Wire, edge: Edge, body: bytes) -> None:
    head = completion(stream=False).partition(b"Content-Type")[0]
    await wire.send(head + CHUNKED + body)
    status, headers, told = await wire.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(told)["error"]["code"] == "invalid_request"
    assert await wire.reader.read() == b""
    assert not edge.service.calls


@pytest.mark.parametrize("apart", [False, True])
async def test_nothing_is_read_behind_a_tunnel(edge: Edge, apart: bool) -> None:
    line, spoken = on_line(edge)
    tunnel = MODELS.replace(b"GET", b"CONNECT")
    for piece in [tunnel, MODELS] if apart else [tunnel + MODELS]:
        spoken.data_received(piece)
    await eventually(lambda: line.closed)
    assert line.said.startswith(b"HTTP/1.1 405 ")
    assert line.said.count(b"HTTP/1.1 ") == 1
    spoken.connection_lost(None)


async def test_who_knows_no_chunks_gets_a_stream_that_ends_with_the_connection(
    edge: Edge, wire: Wire
) -> None:
    edge.service.script = hello
    await wire.send(completion(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
    status, headers = await wire.head()
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    async with asyncio.timeout(PATIENCE_S):
        told = await wire.reader.read()
    assert told.startswith((b"id: ", b"data: "))
    assert told.endswith(b"\n\ndata: [DONE]\n\n")


async def test_who_knows_no_chunks_gets_lengths_as_all_do(edge: Edge, wire: Wire) -> None:
    edge.service.script = hello
    await wire.send(completion(stream=False).replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"text_completion" in (await wire.answer())[2]


REQUESTS = [
    MODELS,
    MODELS.replace(b"Host: x\r\n", UPGRADE),
    UNKEYED
    + b"Content-Length: 40\r\n\r\n"
    + b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
    + b"....",
    UNKEYED.replace(b"Host: x\r\n", UPGRADE)
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\n\r\n\r\r\n0\r\nX-T: y\r\n\r\n",
    b"\r\nHEAD /health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    MODELS.replace(b"GET", b"CONNECT"),
    UNKEYED + b"Transfer-Encoding: chunked\r\n\r\nz\r\n",
]


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 1_000), max_size=30),
)
def test_answers_do_not_depend_on_how_bytes_come(asked: list[bytes], cuts: list[int]) -> None:
    async def statuses(pieces: list[bytes]) -> list[bytes]:
        line, spoken = on_line(Edge())
        for piece in pieces:
            if not line.closed:
                spoken.data_received(piece)
        while spoken.tasks:
            await asyncio.wait(spoken.tasks)
        spoken.connection_lost(None)
        return re.findall(rb"HTTP/1\.1 (\d+)", line.said)

    whole = b"".join(asked)
    ends = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(ends)]
    assert asyncio.run(statuses(pieces)) == asyncio.run(statuses([whole]))
