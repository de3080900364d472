"""Conversations over a scripted API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast

import httpx
import pytest
from headrace_cli.chat import Chat, run
from headrace_cli.endpoint import Endpoint
from headrace_cli.errors import CommandFailed


def chunk(text: str) -> bytes:
    body = {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class ScriptedApi:
    """Streams the given pieces for every chat call; remembers what it was asked."""

    def __init__(self, *pieces: bytes, status: int = 200) -> None:
        self.pieces = pieces
        self.status = status
        self.bodies: list[dict[str, object]] = []
        self.deleted: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            self.deleted.append(request.url.path)
            return httpx.Response(200)
        self.bodies.append(json.loads(request.content))
        return httpx.Response(self.status, stream=Pieces(self.pieces))

    def messages(self) -> list[tuple[str, str]]:
        """Roles and contents of the newest call."""
        messages = cast("list[dict[str, str]]", self.bodies[-1]["messages"])
        return [(message["role"], message["content"]) for message in messages]


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)


def chat_with(api: Callable[[httpx.Request], httpx.Response], system: str | None = None) -> Chat:
    client = httpx.Client(transport=httpx.MockTransport(api), base_url="http://x")
    return Chat(client, "m", system=system, max_tokens=5, temperature=0.0)


def test_turns_carry_the_conversation_so_far() -> None:
    api = ScriptedApi(chunk("Hel"), chunk("lo"), b"data: [DONE]\n\n")
    chat = chat_with(api, system="Be brief")
    shown: list[str] = []
    chat.turn("Hi", shown.append)
    chat.turn("Again", shown.append)
    assert shown == ["Hel", "lo"] * 2
    assert api.messages() == [
        ("system", "Be brief"),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Again"),
    ]
    assert api.bodies[0]["max_tokens"] == 5
    assert api.deleted == []


def test_an_interrupt_cancels_the_answer_and_keeps_what_was_shown() -> None:
    api = ScriptedApi(chunk("a"), chunk("b"), chunk("c"))
    chat = chat_with(api)
    shown: list[str] = []

    def show(piece: str) -> None:
        shown.append(piece)
        if piece == "b":
            raise KeyboardInterrupt

    assert not chat.turn("Hi", show)
    assert shown == ["a", "b", " [cancelled]"]
    assert api.deleted == ["/v1/requests/chatcmpl-1"]
    assert chat.turn("Again", lambda piece: None)
    assert api.messages()[1] == ("assistant", "ab")


def test_a_refused_message_is_taken_back() -> None:
    api = ScriptedApi(b'{"error":{"message":"too long"}}', status=400)
    chat = chat_with(api)
    for text in ("Hi", "Again"):
        with pytest.raises(CommandFailed, match="too long"):
            chat.turn(text, print)
    assert api.messages() == [("user", "Again")]


def test_a_broken_connection_is_told() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(CommandFailed, match="The connection broke: refused"):
        chat_with(refuse).turn("Hi", print)


class ScriptedEndpoint(Endpoint):
    """Talks to a scripted API."""

    api: Callable[[httpx.Request], httpx.Response]

    def client(self) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self.api), base_url="http://x")


def run_with(api: ScriptedApi, message: str | None, lines: list[str]) -> bool:
    class Here(ScriptedEndpoint):
        pass

    Here.api = staticmethod(api)
    left = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return run(
        Here("http://x", "k"),
        model="m",
        message=message,
        system=None,
        max_tokens=None,
        temperature=0.3,
        read=read,
    )


def test_one_message_gets_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(ScriptedApi(chunk("Hello")), "Hi", [])
    assert capsys.readouterr().out == "Hello\n"


def test_one_answer_that_was_cancelled_is_told_to_a_script(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(pieces: Pieces) -> Iterator[bytes]:
        yield chunk("He")
        raise KeyboardInterrupt

    monkeypatch.setattr(Pieces, "__iter__", interrupted)
    assert run_with(ScriptedApi(), "Hi", []) is False
    assert capsys.readouterr().out == "He [cancelled]\n"


def test_a_conversation_ends_with_the_input_and_survives_a_refusal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    api = ScriptedApi(chunk("Hello"))
    run_with(api, None, ["Hi", "  ", "More"])
    assert [len(cast("list[object]", body["messages"])) for body in api.bodies] == [1, 3]
    assert capsys.readouterr().out.count("Hello\n") == 2
    run_with(ScriptedApi(b"no", status=503), None, ["Hi"])
    assert "[HTTP 503: no]" in capsys.readouterr().out


def test_a_message_that_is_no_text_is_told() -> None:
    api = ScriptedApi(chunk("Hello"))
    with pytest.raises(CommandFailed, match="not text"):
        run_with(api, b"a\xff".decode("utf-8", "surrogateescape"), [])
    assert not api.bodies


def test_input_that_is_no_text_is_told() -> None:
    def broken(prompt: str) -> str:
        return b"\xff".decode()

    class Here(ScriptedEndpoint):
        api = staticmethod(ScriptedApi())

    with pytest.raises(CommandFailed, match="not text"):
        run(
            Here("http://x", "k"),
            model="m",
            message=None,
            system=None,
            max_tokens=None,
            temperature=0.3,
            read=broken,
        )
