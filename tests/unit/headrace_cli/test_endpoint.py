"""Where commands find the API, and how they read its answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from headrace_cli.endpoint import (
    Endpoint,
    check,
    error_message,
    event,
    first_model,
    request_path,
    texts,
)
from headrace_cli.errors import CommandFailed
from headrace_cli.state import RunningStack, StateDir

STACK = RunningStack(
    pid=1, urls=("http://127.0.0.1:7",), grpc_ports=(8,), redis_url="redis://x", model="m"
)


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "s").open()


def test_the_local_stack_is_found_with_its_key(state: StateDir) -> None:
    state.write("api_key", "hr_stored")
    state.announce(STACK)
    with state.lock():
        found = Endpoint.find(None, None, state, {})
        assert (found.url, found.key) == ("http://127.0.0.1:7", "hr_stored")
    with pytest.raises(CommandFailed, match="No stack runs here"):
        Endpoint.find(None, None, state, {})


def test_flags_go_before_the_environment(state: StateDir) -> None:
    environ = {"HEADRACE_URL": "http://env/v1/", "HEADRACE_API_KEY": "env"}
    found = Endpoint.find(None, None, state, environ)
    assert (found.url, found.key) == ("http://env", "env")
    found = Endpoint.find("http://flag", "flag", state, environ)
    assert (found.url, found.key) == ("http://flag", "flag")


def test_the_stored_key_is_never_sent_elsewhere(state: StateDir) -> None:
    state.write("api_key", "hr_stored")
    state.announce(STACK)
    with state.lock(), pytest.raises(CommandFailed, match="no API key for http://elsewhere"):
        Endpoint.find("http://elsewhere", None, state, {})


def test_a_key_does_not_show_in_what_is_printed_of_it() -> None:
    assert "secret" not in repr(Endpoint("http://x", "secret"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error":{"message":"too long"}}', "too long"),
        ("<html>", "<html>"),
        ("[1]", "[1]"),
        ('{"detail":1}', '{"detail":1}'),
    ],
)
def test_a_refusal_is_told_in_the_apis_words(body: str, words: str) -> None:
    assert error_message(body) == words
    with pytest.raises(CommandFailed, match="HTTP 400: "):
        check(httpx.Response(400, text=body))


def test_events_are_read_and_errors_in_a_stream_raised() -> None:
    assert event(": comment") is None
    assert event("data: [DONE]") is None
    assert event('data: {"id":"x"}') == {"id": "x"}
    with pytest.raises(CommandFailed, match="engine died"):
        event('data: {"error":{"message":"engine died"}}')


def test_texts_of_chat_and_completion_chunks_are_found() -> None:
    chat = {
        "choices": [{"delta": {"role": "assistant", "content": ""}}, {"delta": {"content": "a"}}]
    }
    assert list(texts(chat)) == ["a"]
    assert list(texts({"choices": [{"text": "b"}]})) == ["b"]
    assert list(texts({"choices": [], "usage": {}})) == []


def answering(models: str) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=models)

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://x")


def test_the_first_model_is_taken_or_its_absence_told() -> None:
    with answering('{"data":[{"id":"m"},{"id":"n"}]}') as client:
        assert first_model(client) == "m"
    with answering('{"data":[]}') as client, pytest.raises(CommandFailed, match="no model"):
        first_model(client)


def test_an_api_that_does_not_answer_is_told() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://x") as client:
        with pytest.raises(CommandFailed, match="does not answer: refused"):
            first_model(client)


@pytest.mark.parametrize(
    "url",
    [
        *("http://[::1", "http://x:port", "junk", "ftp://x", "http://"),
        *("http://a..b", f"http://{'a' * 64}"),
    ],
)
def test_what_is_no_address_is_refused(state: StateDir, url: str) -> None:
    with pytest.raises(CommandFailed, match="no address of an API"):
        Endpoint.find(url, "k", state, {})


@pytest.mark.parametrize("key", ["é", "a\nb"])
def test_what_is_no_key_is_refused_and_not_shown(state: StateDir, key: str) -> None:
    with pytest.raises(CommandFailed, match="printable ASCII") as caught:
        Endpoint.find("http://x", f"secret{key}", state, {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("request_id", "path"),
    [("cmpl-1", "cmpl-1"), ("../../admin/keys/k", "..%2F..%2Fadmin%2Fkeys%2Fk"), ("a?b", "a%3Fb")],
)
def test_an_id_is_one_part_of_a_path(request_id: str, path: str) -> None:
    assert request_path(request_id) == f"/v1/requests/{path}"


@pytest.mark.parametrize("request_id", ["", "a" * 70_000])
def test_what_can_be_no_id_is_not_asked_for(request_id: str) -> None:
    with pytest.raises(CommandFailed, match="1 to 256 characters"):
        request_path(request_id)


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from-a-file\n")
    state = StateDir(tmp_path / "none")
    environ = {"HEADRACE_API_KEY_FILE": str(file)}
    assert Endpoint.find("http://x", None, state, environ).key == "from-a-file"
    assert Endpoint.find("http://x", "given", state, environ).key == "given"
    with pytest.raises(CommandFailed, match=r"absent: No such file"):
        Endpoint.find("http://x", None, state, {"HEADRACE_API_KEY_FILE": str(tmp_path / "absent")})
