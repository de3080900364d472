"""Ids, full queues and stops, as they have gone wrong in front of other engines."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI
from support.api import Api, Body, check_error, told
from support.figures import engine_metrics, gateway_metrics, process_id
from support.idle import check_idle
from support.served import ServedStack, StartStack
from support.waiting import wait_until

STORY: Body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 40}
LIST: Body = {"prompt": "1, 2, 3, 4, 5,", "temperature": 0, "max_tokens": 40}
"""Two prompts whose greedy answers differ."""


def headers(api: Api, label: str) -> dict[str, str]:
    return {"authorization": api.client.headers["authorization"], "x-request-id": label}


@pytest.mark.case("BR-19")
def test_two_requests_with_one_label_stay_apart(api: Api, stack: ServedStack) -> None:
    alone = [api.text(body) for body in (STORY, LIST)]

    def ask(body: Body) -> str:
        answer = api.client.post(
            "/v1/completions",
            json={"model": stack.model, **body},
            headers=headers(api, "dup-1"),
        )
        assert answer.headers["x-request-id"] == "dup-1"
        return answer.json()["choices"][0]["text"]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(ask, (STORY, LIST))) == alone


@pytest.mark.case("BR-19")
def test_a_cancel_hits_only_its_own_request(api: Api, stack: ServedStack) -> None:
    alone = api.text(STORY)
    with ThreadPoolExecutor(1) as thread:
        beside = thread.submit(api.text, STORY)
        with api.client.stream(
            "POST",
            "/v1/completions",
            json={"model": stack.model, **LIST, "max_tokens": 400, "stream": True},
            headers=headers(api, "dup-1"),
        ) as stream:
            request = stream.headers["x-headrace-request-id"]
            pieces = stream.iter_raw()
            raw = next(pieces)
            answer = api.client.delete(f"/v1/requests/{request}")
            assert answer.json()["cancelled"] is True
            raw += b"".join(pieces)
        assert beside.result() == alone
    error = told(raw).error
    assert error is not None
    assert error["code"] == "cancelled"
    assert api.client.delete(f"/v1/requests/{request}").json()["cancelled"] is False
    check_idle(stack)


@pytest.mark.case("BR-19")
@pytest.mark.parametrize("label", ["x" * 8192, "../x", "", "a b"])
def test_odd_labels_are_replaced(api: Api, label: str) -> None:
    answer = api.client.get("/v1/models", headers=headers(api, label))
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].startswith("req-")


@pytest.fixture
def small(start: StartStack) -> ServedStack:
    """An echo engine that runs one request at a time behind a queue of four."""
    return start(
        "--executor=echo",
        environ={
            "HEADRACE_GATEWAY_MAX_QUEUED": "4",
            "HEADRACE_ENGINE_MAX_BATCH": "1",
            "HEADRACE_ENGINE_MAX_WAITING": "1",
            "HEADRACE_ENGINE_ECHO_STEP_MS": "20",
        },
    )


@pytest.fixture
def small_api(small: ServedStack) -> Generator[Api]:
    with Api(small) as made:
        yield made


LONG: Body = {"prompt": "again and " * 250, "max_tokens": 50}
"""The echo engine says 500 words again if it is let."""


@pytest.mark.slow
@pytest.mark.case("BR-30")
def test_a_full_queue_says_when_to_come_back(small: ServedStack, small_api: Api) -> None:
    def ask(number: int) -> httpx.Response:
        return small_api.completion({**LONG, "stream": number % 2 == 0})

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(ask, range(12)))
    refused = [answer for answer in answers if answer.status_code != 200]
    admitted = [answer for answer in answers if answer.status_code == 200]
    assert refused
    assert len(admitted) >= 4
    for answer in refused:
        error = check_error(answer, (429, 503))
        assert error["code"] == "queue_full"
        assert int(answer.headers["retry-after"]) >= 1
    for answer in admitted:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert told(answer.content).dones == 1
    rejected = gateway_metrics(small)['headrace_gateway_requests_rejected_total{code="queue_full"}']
    assert rejected == len(refused)
    check_idle(small)


@pytest.mark.slow
@pytest.mark.case("BR-30")
def test_clients_that_back_off_all_succeed_in_the_end(small: ServedStack) -> None:
    with OpenAI(base_url=f"{small.url}/v1", api_key=small.key, max_retries=8) as client:

        def ask(_: int) -> str:
            answer = client.completions.create(
                model=small.model, prompt="again and again", max_tokens=20
            )
            return answer.choices[0].text

        with ThreadPoolExecutor(12) as threads:
            texts = list(threads.map(ask, range(12)))
    assert len(set(texts)) == 1
    assert texts[0]


@pytest.mark.slow
@pytest.mark.case("BR-30")
@pytest.mark.case("BR-19")
def test_cancelling_a_queued_request_frees_its_place(small: ServedStack, small_api: Api) -> None:
    body = {"model": small.model, **LONG, "max_tokens": 400, "stream": True}

    def begin(streams: contextlib.ExitStack) -> httpx.Response:
        """Returns as soon as the request is admitted or refused."""
        return streams.enter_context(small_api.client.stream("POST", "/v1/completions", json=body))

    with contextlib.ExitStack() as streams:
        admitted = [begin(streams)]
        while (answer := begin(streams)).status_code == 200:
            admitted.append(answer)
            assert len(admitted) <= 10
        assert answer.status_code == 429
        last = admitted[-1].headers["x-headrace-request-id"]
        assert small_api.client.delete(f"/v1/requests/{last}").json()["cancelled"] is True
        assert begin(streams).status_code == 200
        error = told(admitted[-1].read()).error
        assert error is not None
        assert error["code"] == "cancelled"
    check_idle(small)


@pytest.mark.slow
@pytest.mark.case("BR-31")
def test_a_stopping_gateway_lets_streams_end(start: StartStack) -> None:
    running = start(
        "--executor=echo",
        environ={"HEADRACE_ENGINE_ECHO_STEP_MS": "20", "HEADRACE_GATEWAY_DRAIN_S": "20"},
    )
    with (
        Api(running) as api,
        httpx.Client(base_url=running.url, trust_env=False) as idle,
        ThreadPoolExecutor(4) as threads,
    ):
        idle.get("/health/live")
        streams = [
            threads.submit(api.stream_completion, {**LONG, "max_tokens": 200}) for _ in range(4)
        ]
        wait_until(
            lambda: engine_metrics(running)["headrace_engine_sequences_running"] == 4,
            "they do not run",
        )
        os.kill(process_id(running, "gateway"), signal.SIGTERM)
        for stream in streams:
            told_ = stream.result()
            assert told_.dones == 1
            assert told_.reasons == [(0, "length")]
