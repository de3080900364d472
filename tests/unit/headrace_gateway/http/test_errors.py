"""Every error has the same form, and says what a client should do."""

from __future__ import annotations

import httpx
import orjson
import pytest
from headrace_contracts.codes import STATUS, Code, FinishReason
from headrace_gateway.errors import Draining, GatewayError, NoEngine, QueueFull
from headrace_gateway.http.errors import (
    HttpError,
    bad_request,
    ended_badly,
    error_body,
    error_response,
    http_error,
)
from starlette.exceptions import HTTPException
from structlog.testing import capture_logs
from support.http_edge import Edge


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_body_and_its_status(code: Code) -> None:
    response = error_response(HttpError(code, "what happened"))
    error = orjson.loads(response.body)["error"]
    assert response.status_code == STATUS[code].http
    assert error == {
        "message": "what happened",
        "type": STATUS[code].openai_type,
        "param": None,
        "code": code.wire_name,
    }


def test_a_message_that_quotes_half_a_character_is_still_utf8() -> None:
    raw = error_body(bad_request("role R\ud800", "a\udfff"))
    assert orjson.loads(raw.decode())["error"]["message"] == "role R\\ud800"


def test_a_long_message_is_cut() -> None:
    assert len(error_body(bad_request("x" * 100_000))) < 5000


def test_waiting_is_told_in_whole_seconds_and_milliseconds() -> None:
    response = error_response(http_error(QueueFull(depth=5, limit=4, retry_after_s=3)))
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.headers["retry-after-ms"] == "3000"
    assert "x-should-retry" not in response.headers


@pytest.mark.parametrize("advised", [None, 0])
def test_the_advice_is_at_least_a_second(advised: int | None) -> None:
    response = error_response(http_error(NoEngine("none", retry_after_s=advised)))
    assert response.headers["retry-after"] == "1"


def test_a_wait_longer_than_clients_bear_is_no_invitation() -> None:
    response = error_response(http_error(NoEngine("none", retry_after_s=3600)))
    assert response.headers["x-should-retry"] == "false"


def test_a_draining_gateway_closes_the_connection() -> None:
    response = error_response(http_error(Draining("going")))
    assert (response.status_code, response.headers["connection"]) == (503, "close")


@pytest.mark.parametrize("status", [400, 404, 405, 415, 418, 500, 503])
def test_the_framework_s_errors_take_our_form(status: int) -> None:
    error = http_error(HTTPException(status, detail="secret detail"))
    assert error.status == (500 if status >= 500 else status)
    assert b"secret" not in error_body(error)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (FinishReason.STOP, None),
        (FinishReason.LENGTH, None),
        (FinishReason.CANCELLED, Code.CANCELLED),
        (FinishReason.DEADLINE, Code.DEADLINE_EXCEEDED),
        (FinishReason.ERROR, Code.INTERNAL),
    ],
)
def test_only_stop_and_length_are_good_ends(reason: FinishReason, code: Code | None) -> None:
    error = ended_badly(reason, None, "")
    assert (error and error.code) == code
    assert error is None or error.message


def test_the_engine_s_own_words_are_passed_on() -> None:
    error = ended_badly(FinishReason.ERROR, Code.OUT_OF_MEMORY, "no block left")
    assert error is not None
    assert (error.code, error.message) == (Code.OUT_OF_MEMORY, "no block left")


async def test_unknown_paths_and_methods_are_404_and_405(client: httpx.AsyncClient) -> None:
    missing = await client.get("/v1/nothing")
    wrong = await client.get("/v1/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


async def test_a_fault_of_ours_is_500_without_its_inside(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.refusal = ZeroDivisionError("secret place")
    with capture_logs() as logs:
        answer = await client.post("/v1/completions", json={"model": "m", "prompt": "a"})
    assert [line["event"] for line in logs] == ["http.failed", "http.finished"]
    assert logs[0]["id"] == answer.headers["x-headrace-request-id"]
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-request-id"]


async def test_the_service_s_refusals_keep_code_param_and_advice(
    edge: Edge, client: httpx.AsyncClient
) -> None:
    edge.service.refusal = GatewayError("bad thing", param="n")
    answer = await client.post(
        "/v1/completions", json={"model": "m", "prompt": "a", "stream": True}
    )
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["param"] == "n"
