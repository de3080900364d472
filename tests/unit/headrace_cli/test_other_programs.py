"""What answers at the address is another program: said in a line, by every command that asks."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from headrace_cli import cancel, chat, requests, verify
from headrace_cli.endpoint import Endpoint, event, first_model
from headrace_cli.errors import CommandFailed

ANSWERS: list[bytes] = [
    *(b"", b"<html>", b"[1,2", b"null", b"7", b'"text"', b"[]", b"{}", b'{"data": 1}'),
    *(b'{"data": [1], "has_more": 0}', b'{"data": [{}], "has_more": 0}', b"\xff\xfe"),
]


class Other(Endpoint):
    """An endpoint at which another program answers."""

    body = b""

    def client(self) -> httpx.Client:
        def answer(_request: httpx.Request) -> httpx.Response:
            return httpx.Response(200, content=self.body)

        return httpx.Client(transport=httpx.MockTransport(answer), base_url=self.url)


def first(endpoint: Endpoint) -> None:
    with endpoint.client() as client:
        first_model(client)


def talk(endpoint: Endpoint) -> None:
    chat.run(endpoint, model=None, message="x", system=None, max_tokens=None, temperature=0.0)


ASKS: dict[str, Callable[[Endpoint], object]] = {
    "cancel": lambda endpoint: cancel.run(endpoint, "cmpl-1"),
    "ps": lambda endpoint: requests.list_live(endpoint, limit=9),
    "why": lambda endpoint: requests.why(endpoint, "cmpl-1"),
    "models": first,
    "chat": talk,
}


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("body", ANSWERS)
def test_what_is_no_answer_of_ours_is_told_so(
    name: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "body", body)
    with pytest.raises(CommandFailed, match="http://other answers, but not as Headrace does"):
        ASKS[name](Other("http://other", "key"))


@pytest.mark.parametrize("body", ANSWERS)
def test_a_check_of_another_program_fails_and_the_next_one_is_made(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "body", body)
    plan = verify.Plan(Other("http://other", "key"), model="m", max_tokens=8)
    said: list[str] = []
    assert not verify.run(plan, said.append)
    assert len(said) == 6


@pytest.mark.parametrize("line", ["data: ", "data: {", "data: 7", "data: []", "data: null"])
def test_a_line_of_a_stream_that_is_no_event_is_told_so(line: str) -> None:
    with pytest.raises(CommandFailed, match="no event"):
        event(line)
