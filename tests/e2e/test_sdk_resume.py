"""Looking at requests, and reading on where a stream was left."""

from __future__ import annotations

import httpx
import pytest
from support.api import Api, Body, check_error, told
from support.idle import check_idle
from support.served import ServedStack, StartStack
from support.waiting import wait_until

STORY: Body = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 60}


def cursors(raw: bytes) -> list[str]:
    return [line[4:] for line in raw.decode().split("\n") if line.startswith("id: ")]


def test_a_request_can_be_looked_at_by_its_own_key_only(api: Api, stack: ServedStack) -> None:
    answer = api.completion({**STORY, "max_tokens": 5})
    request = answer.json()["id"]

    def ended() -> bool:  # the server hears of it a moment after the client
        return api.client.get(f"/v1/requests/{request}").json()["status"] == "finished"

    wait_until(ended, "it does not end")
    info = api.client.get(f"/v1/requests/{request}").json()
    assert (info["id"], info["status"], info["finish_reason"]) == (request, "finished", "length")
    assert info["usage"]["completion_tokens"] == 5
    check_error(api.client.get("/v1/requests/cmpl-nobody"), 404)
    check_error(api.client.get("/v1/requests/cmpl-nobody/events"), 404)


def test_a_finished_stream_can_be_read_again_from_any_place(api: Api, stack: ServedStack) -> None:
    first = api.stream_completion({**STORY, "max_tokens": 40})
    request = first.chunks[0]["id"]
    places = cursors(first.raw)
    for after in ("", places[4], places[-1]):
        again = told(
            api.client.get(f"/v1/requests/{request}/events", params={"after": after}).content
        )
        known = "".join(
            text
            for (_, text), place in zip(first.deltas, places, strict=False)
            if after and int(place) <= int(after)
        )
        assert known + "".join(text for _, text in again.deltas) == first.texts[0]
        assert again.dones == 1


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_stream_goes_on_at_another_gateway(start: StartStack) -> None:
    stack = start(
        "--gateways=2",
        environ={"HEADRACE_GATEWAY_RESUME_GRACE_S": "30", "HEADRACE_ENGINE_RESUME_GRACE_S": "30"},
    )
    with Api(stack) as api:
        whole = api.text({**STORY, "max_tokens": 100})
        raw = b""
        with api.client.stream(
            "POST",
            "/v1/completions",
            json={"model": stack.model, **STORY, "max_tokens": 100, "stream": True},
        ) as stream:
            request = stream.headers["x-headrace-request-id"]
            for piece in stream.iter_raw():
                raw += piece
                if raw.count(b"id: ") >= 10:
                    break
        seen = raw[: raw.rindex(b"\n\n") + 2]
        after = cursors(seen)[-1]
        with httpx.Client(
            base_url=stack.urls[1], headers=api.client.headers, trust_env=False
        ) as other:
            rest = other.get(
                f"/v1/requests/{request}/events", params={"after": after}, timeout=60
            ).content
        assert told(seen).texts[0] + told(rest).texts[0] == whole
    check_idle(stack)
