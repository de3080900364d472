"""Ending a request from the command line."""

from __future__ import annotations

import httpx
import pytest
from headrace_cli.cancel import run
from headrace_cli.endpoint import Endpoint
from headrace_cli.errors import CommandFailed


class Scripted(Endpoint):
    """Answers every call alike; a body of None: nobody answers."""

    status = 200
    body: str | None = '{"cancelled": true}'

    def client(self) -> httpx.Client:
        def answer(request: httpx.Request) -> httpx.Response:
            assert (request.method, request.url.path) == ("DELETE", "/v1/requests/cmpl-1")
            if self.body is None:
                raise httpx.ConnectError("refused")
            return httpx.Response(self.status, text=self.body)

        return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")


class Ended(Scripted):
    body = '{"cancelled": false}'


class Unknown(Scripted):
    status = 404
    body = '{"error":{"message":"There is no request"}}'


class Gone(Scripted):
    body = None


def test_a_cancelled_request_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    run(Scripted("http://x", "k"), "cmpl-1")
    assert capsys.readouterr().out == "cancelled cmpl-1\n"


@pytest.mark.parametrize(
    ("kind", "words"),
    [(Ended, "had ended already"), (Unknown, "There is no request"), (Gone, "does not answer")],
)
def test_what_could_not_be_cancelled_is_a_failure(kind: type[Endpoint], words: str) -> None:
    with pytest.raises(CommandFailed, match=words):
        run(kind("http://x", "k"), "cmpl-1")
