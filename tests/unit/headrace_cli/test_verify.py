"""Checking a deployment: what is as promised, and what is not, at a scripted gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from headrace_cli import verify
from headrace_cli.endpoint import Endpoint
from headrace_cli.errors import CommandFailed
from headrace_cli.keys import KeyPlace
from headrace_cli.state import RunningStack, StateDir
from headrace_cli.verify import (
    Plan,
    check_cancel,
    check_engine_metrics,
    check_gateway_metrics,
    check_keys,
    check_limit,
    check_stream,
    key_place,
    run,
)
from headrace_engine.metrics import EngineMetrics
from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Registry
from headrace_transport.address import Access
from headrace_transport.errors import AccessDenied, TransportUnavailable

Answer = Callable[[httpx.Request], httpx.Response]
PIECES = [" G", " H", " I"]


def stream(pieces: list[str], *, first: int = 1, ids: bool = True) -> httpx.Response:
    """A stream of text completions."""
    lines: list[str] = []
    for number, piece in enumerate(pieces, first):
        reason = "length" if piece == PIECES[-1] else None
        choice = {"index": 0, "text": piece, "finish_reason": reason}
        if ids:
            lines.append(f"id: {number}")
        lines += [f"data: {json.dumps({'id': 'cmpl-1', 'choices': [choice]})}", ""]
    return httpx.Response(200, text="\n".join([*lines, "data: [DONE]", "", ""]))


def events(request: httpx.Request) -> httpx.Response:
    after = int(request.url.params["after"])
    return stream(PIECES[after:], first=after + 1)


def models(request: httpx.Request) -> httpx.Response:
    if request.headers.get("authorization") != "Bearer key":
        return httpx.Response(401)
    return httpx.Response(200, json={"data": [{"id": "m"}]})


def metrics(_: httpx.Request) -> httpx.Response:
    registry = Registry("gateway")
    GatewayMetrics(registry)
    return httpx.Response(200, content=registry.exposition())


GOOD: Mapping[str, Answer] = {
    "GET /v1/models": models,
    "GET /v1/models/m": lambda _: httpx.Response(200, json={"max_model_len": 64}),
    "POST /v1/completions": lambda _: stream(PIECES),
    "GET /v1/requests/cmpl-1/events": events,
    "DELETE /v1/requests/cmpl-1": lambda _: httpx.Response(200, json={"cancelled": True}),
    "GET /v1/requests/cmpl-1": lambda _: httpx.Response(200, json={"finish_reason": "cancelled"}),
    "GET /metrics": metrics,
}


class Scripted(Endpoint):
    """A gateway of answers by method and path."""

    def client(self) -> httpx.Client:
        def answer(request: httpx.Request) -> httpx.Response:
            return ANSWERS[f"{request.method} {request.url.path}"](request)

        return httpx.Client(
            transport=httpx.MockTransport(answer), base_url="http://x", headers=self.headers
        )


ANSWERS: dict[str, Answer] = dict(GOOD)


@pytest.fixture(autouse=True)
def fresh() -> None:
    ANSWERS.update(GOOD)


PLAN = Plan(Scripted("http://x", "key"))


def test_a_deployment_that_keeps_its_promises_passes() -> None:
    said: list[str] = []
    assert run(PLAN, said.append)
    assert len(said) == 6
    assert all(line.startswith("ok ") for line in said)


def test_every_failure_is_said_and_none_stops_the_others() -> None:
    ANSWERS["POST /v1/completions"] = lambda _: httpx.Response(503, json={})
    said: list[str] = []
    assert not run(PLAN, said.append)
    assert len(said) == 6
    assert [line.split(":")[0] for line in said if line.startswith("FAIL")] == [
        "FAIL  stream and resume",
        "FAIL  cancel",
    ]


def test_an_api_that_opens_without_a_key_fails() -> None:
    ANSWERS["GET /v1/models"] = lambda _: httpx.Response(200, json={"data": [{"id": "m"}]})
    with pytest.raises(CommandFailed, match="200, not 401"):
        check_keys(PLAN)


def test_a_resumed_stream_must_go_on_where_it_was() -> None:
    ANSWERS["GET /v1/requests/cmpl-1/events"] = lambda _: stream([" I"])
    with pytest.raises(CommandFailed, match="went on as ' I'"):
        check_stream(PLAN)


def test_a_stream_without_places_to_resume_fails() -> None:
    ANSWERS["POST /v1/completions"] = lambda _: stream(PIECES, ids=False)
    with pytest.raises(CommandFailed, match="without an id line"):
        check_stream(PLAN)


def test_a_cancel_that_came_too_late_proves_nothing() -> None:
    ANSWERS["DELETE /v1/requests/cmpl-1"] = lambda _: httpx.Response(200, json={"cancelled": False})
    with pytest.raises(CommandFailed, match="had ended"):
        check_cancel(PLAN)


def test_limits_need_a_place_to_make_a_key() -> None:
    assert "not looked at" in check_limit(PLAN)


def test_an_api_is_looked_at_with_its_own_server(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "s").open()
    state.announce(RunningStack(1, ("http://x",), (2,), "redis://here", "m"))
    server = {"HEADRACE_GATEWAY_REDIS_URL": "redis://there"}

    def found(url: str | None, redis_url: str | None, environ: Mapping[str, str]) -> str | None:
        place = key_place(url, redis_url, state, environ)
        return None if place is None else place.redis_url

    with state.lock():
        assert found(None, None, {}) == "redis://here"
        assert found(None, None, server) == "redis://here"
        assert found("http://y", None, {}) is None
        assert found("http://y", None, server) == "redis://there"
        assert found(None, None, {"HEADRACE_URL": "http://y"}) is None
        assert found(None, None, {"HEADRACE_URL": "http://y", **server}) == "redis://there"
        assert found(None, "redis://said", server) == "redis://said"


def test_a_metric_that_is_declared_and_not_served_is_named() -> None:
    ANSWERS["GET /metrics"] = lambda _: httpx.Response(
        200, text=metrics(_).text.replace("backend_up", "backend_is_up")
    )
    with pytest.raises(CommandFailed, match="headrace_gateway_backend_up"):
        check_gateway_metrics(PLAN)


def test_an_engines_address_that_is_none_is_told() -> None:
    with pytest.raises(CommandFailed, match="is no address"):
        check_engine_metrics(Plan(PLAN.endpoint, engine_metrics="http://[::1"))


ENGINES = Plan(PLAN.endpoint, engine_metrics="http://engines:9100")


def test_an_engine_that_cannot_be_reached_at_once_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry("engine")
    EngineMetrics(registry)
    asked: list[str] = []

    def get(url: str, timeout: float) -> httpx.Response:
        asked.append(url)
        if len(asked) < 3:
            raise httpx.ConnectError("Connection refused")
        request = httpx.Request("GET", url)
        return httpx.Response(200, content=registry.exposition(), request=request)

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setattr("time.sleep", abs)
    assert "all" in check_engine_metrics(ENGINES)
    assert asked == ["http://engines:9100/metrics"] * 3


@pytest.mark.parametrize(
    ("error", "times"), [(TransportUnavailable("away"), 2), (AccessDenied("not you"), 1)]
)
def test_a_server_out_of_reach_is_asked_again_and_one_that_refuses_is_not(
    monkeypatch: pytest.MonkeyPatch, error: TransportUnavailable, times: int
) -> None:
    asked: list[KeyPlace] = []

    async def limited_key(place: KeyPlace) -> tuple[str, str]:
        asked.append(place)
        raise error

    clock = iter([0.0, 1.0, 1.0 + verify.CONNECT_S])
    monkeypatch.setattr(verify, "_limited_key", limited_key)
    monkeypatch.setattr(verify, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=abs))
    place = KeyPlace("redis://127.0.0.1:1", Access(), "pepper")
    with pytest.raises(type(error)):
        check_limit(Plan(PLAN.endpoint, key_place=place))
    assert len(asked) == times
