"""A key's own requests from the command line."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from headrace_cli.endpoint import Endpoint
from headrace_cli.errors import CommandFailed
from headrace_cli.requests import list_live, why

LIVE = {
    "id": "cmpl-1",
    "model": "m",
    "status": "queued",
    "reason": "queue",
    "tokens": 0,
    "created": 0,
}
WHY = {
    "status": "running",
    "reason": "blocks",
    "waited_seconds": 2.25,
    "explanation": "Its engine's cache is short of 3 blocks for it.",
    "engine": "e-1",
}


class Scripted(Endpoint):
    """Answers every call alike, and notes what was asked."""

    asked: str = ""
    status = 200
    body: Any = None

    def client(self) -> httpx.Client:
        def answer(request: httpx.Request) -> httpx.Response:
            type(self).asked = str(request.url)
            if self.body is None:
                raise httpx.ConnectError("refused")
            return httpx.Response(self.status, text=json.dumps(self.body))

        return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")


class Listing(Scripted):
    body = {"data": [LIVE, {**LIVE, "id": "cmpl-22"}], "has_more": True}  # noqa: RUF012


class Empty(Scripted):
    body = {"data": [], "has_more": False}  # noqa: RUF012


class Waiting(Scripted):
    body = WHY


class Unknown(Scripted):
    status = 404
    body = {"error": {"message": "There is no request"}}  # noqa: RUF012


def test_live_requests_are_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    list_live(Listing("http://x", "k"), limit=2)
    head, first, second, more = capsys.readouterr().out.splitlines()
    assert Listing.asked == "http://x/v1/requests?limit=2"
    assert head.split() == ["ID", "MODEL", "STATUS", "REASON", "TOKENS", "AGE"]
    assert first.split()[:5] == ["cmpl-1", "m", "queued", "queue", "0"]
    assert second.index("m ") == first.index("m ", 6)
    assert "more than 2" in more


def test_no_live_request_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    list_live(Empty("http://x", "k"), limit=20)
    assert "no live request" in capsys.readouterr().out


def test_why_is_told_with_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    why(Waiting("http://x", "k"), "a/b")
    assert Waiting.asked == "http://x/v1/requests/a%2Fb/why"
    said = capsys.readouterr().out.splitlines()
    assert said == ["running: blocks, 2.2 s since it came", WHY["explanation"], "engine: e-1"]


@pytest.mark.parametrize(
    ("kind", "words"), [(Unknown, "There is no request"), (Scripted, "does not answer")]
)
def test_what_could_not_be_asked_is_a_failure(kind: type[Scripted], words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        why(kind("http://x", "k"), "cmpl-1")
