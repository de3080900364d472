"""Streams, as users of other servers have found them broken."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.api import ALPHABET_PROMPT, Api, Body, check_error, told
from support.figures import engine_metrics, process_id
from support.idle import check_idle
from support.served import ServedStack
from support.waiting import wait_until

MELT = "🫠"
"""Three tokens: 10813, 121, 250."""
MELTS: Body = {"prompt": " ".join([MELT] * 8), "temperature": 0}


@pytest.mark.case("BR-01")
def test_a_stream_joins_to_the_whole_text_wherever_it_is_cut(api: Api) -> None:
    def both(tokens: int) -> None:
        whole = api.completion({**MELTS, "max_tokens": tokens}).json()
        stream = api.stream_completion(
            {**MELTS, "max_tokens": tokens, "stream_options": {"include_usage": True}}
        )
        text = whole["choices"][0]["text"]
        assert stream.texts[0] == text
        assert stream.chunks[-1]["usage"]["completion_tokens"] == tokens
        assert whole["usage"]["completion_tokens"] == tokens
        complete = text.rstrip("\ufffd")
        assert "\ufffd" not in complete
        for _, delta in stream.deltas[:-1]:
            assert "\ufffd" not in delta

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(both, range(1, 13)))
    text = api.text({**MELTS, "max_tokens": 12})
    assert MELT in text


@pytest.mark.case("BR-01")
@pytest.mark.parametrize("stream", [False, True])
def test_bytes_that_never_become_a_character_still_end(api: Api, stream: bool) -> None:
    body: Body = {"prompt": "Hi", "logit_bias": {"10813": 100}, "max_tokens": 6}
    if stream:
        told_ = api.stream_completion({**body, "stream_options": {"include_usage": True}})
        assert told_.reasons == [(0, "length")]
        assert told_.chunks[-1]["usage"]["completion_tokens"] == 6
    else:
        answer = api.completion(body).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.case("BR-02")
@pytest.mark.parametrize(
    ("stop", "tokens", "text", "reason"),
    [
        (["J K L"], 12, " G H I ", "stop"),
        (["I J Q"], 4, " G H I J", "length"),
        (["I J", "H I"], 12, " G ", "stop"),
        ("K", 12, " G H I J ", "stop"),
    ],
)
def test_a_stop_string_across_tokens_is_neither_shown_nor_feared(
    api: Api, stop: object, tokens: int, text: str, reason: str
) -> None:
    body: Body = {"prompt": ALPHABET_PROMPT, "temperature": 0, "stop": stop, "max_tokens": tokens}
    [choice] = api.completion(body).json()["choices"]
    stream = api.stream_completion(body)
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    assert (stream.texts, stream.reasons) == ({0: text}, [(0, reason)])


HELLO: Body = {
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0,
    "max_tokens": 3,
}


@pytest.mark.case("BR-03")
@pytest.mark.parametrize("options", [None, {"include_usage": False}])
def test_usage_is_not_told_unasked(api: Api, options: object) -> None:
    stream = api.stream_chat({**HELLO, "stream_options": options})
    assert all(chunk["choices"] for chunk in stream.chunks)
    assert all(chunk.get("usage") is None for chunk in stream.chunks)
    assert stream.dones == 1


@pytest.mark.case("BR-03")
def test_usage_asked_for_comes_last_and_alone(api: Api) -> None:
    whole = api.chat(HELLO).json()["usage"]
    *before, last = api.stream_chat({**HELLO, "stream_options": {"include_usage": True}}).chunks
    assert (whole["prompt_tokens"], whole["completion_tokens"]) == (31, 3)
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole[name]
    assert all("usage" in chunk and chunk["usage"] is None for chunk in before)


@pytest.mark.case("BR-03")
@pytest.mark.parametrize("stream", [None, False])
def test_stream_options_without_a_stream_are_refused(api: Api, stream: object) -> None:
    answer = api.chat({**HELLO, "stream": stream, "stream_options": {"include_usage": True}})
    assert check_error(answer, 400)["param"] == "stream_options"


SAMPLED: Body = {"temperature": 1.0, "seed": 7, "max_tokens": 12}


def _texts(body: dict[str, Any]) -> dict[int, str]:
    return {
        choice["index"]: choice["text"] if "text" in choice else choice["message"]["content"]
        for choice in body["choices"]
    }


@pytest.mark.case("BR-04")
def test_choices_keep_apart_and_a_seed_repeats_them(api: Api) -> None:
    body: Body = {**SAMPLED, "prompt": "Once upon a time", "n": 3}
    whole = [api.completion(body).json() for _ in range(2)]
    streams = [
        api.stream_completion({**body, "stream_options": {"include_usage": True}}) for _ in range(2)
    ]
    texts = _texts(whole[0])
    assert sorted(texts) == [0, 1, 2]
    assert len(set(texts.values())) == 3
    for answer in whole:
        assert _texts(answer) == texts
        usage = answer["usage"]
        assert usage["prompt_tokens"] == 4
        assert usage["completion_tokens"] <= 36
    for stream in streams:
        assert stream.texts == texts
        assert sorted(index for index, _ in stream.reasons) == [0, 1, 2]
        assert stream.dones == 1
        last = stream.chunks[-1]["usage"]
        assert last["completion_tokens"] == whole[0]["usage"]["completion_tokens"]


@pytest.mark.case("BR-04")
def test_choices_of_a_chat_keep_apart(api: Api) -> None:
    body: Body = {**SAMPLED, "messages": HELLO["messages"], "n": 2}
    texts = _texts(api.chat(body).json())
    stream = api.stream_chat(body)
    assert sorted(texts) == [0, 1]
    assert stream.texts == texts
    assert sorted(index for index, _ in stream.reasons) == [0, 1]
    assert stream.dones == 1


@pytest.mark.case("BR-05")
@pytest.mark.parametrize(
    "change",
    [{"n": 0}, {"messages": []}, {"messages": [{"role": "user", "content": "word " * 9000}]}],
    ids=["n", "no-messages", "too-long"],
)
def test_a_bad_request_is_never_a_stream(api: Api, change: Body) -> None:
    check_error(api.chat({**HELLO, **change, "stream": True}), 400)


@pytest.mark.slow
@pytest.mark.case("BR-05")
@pytest.mark.timeout(180)
def test_an_engine_killed_before_the_first_token_is_no_silent_end(
    api: Api, stack: ServedStack
) -> None:
    body: Body = {"prompt": "one two three four five six " * 250, "temperature": 0, "max_tokens": 4}
    expected = api.text(body)
    changed: Body = {**body, "cache_salt": "another prefill"}
    asked = {"model": stack.model, **changed, "stream": True}
    engine = process_id(stack, "engine")
    raw: list[bytes] = []

    def read() -> None:
        with httpx.Client(
            base_url=stack.url, headers=api.client.headers, timeout=150, trust_env=False
        ) as client:
            raw.append(client.post("/v1/completions", json=asked).content)

    reader = threading.Thread(target=read)
    reader.start()
    running = "headrace_engine_sequences_running"
    wait_until(lambda: engine_metrics(stack)[running] > 0, "it never ran")
    os.kill(engine, signal.SIGKILL)
    reader.join()
    stream = told(raw[0])
    if stream.error is None:
        assert stream.texts == {0: expected}
        assert stream.dones == 1
    else:
        assert not stream.dones
        assert not stream.reasons
    check_idle(stack)
