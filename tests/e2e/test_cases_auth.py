"""Keys and origins, as other servers have let them slip."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from headrace_contracts.pb import inference_pb2, inference_pb2_grpc
from support.api import Api, check_error
from support.figures import engine_metrics
from support.served import ServedStack, StartStack, clean_environ, headrace

ORIGIN = "https://ui.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def spoken(stack: ServedStack, request: bytes) -> tuple[int, bytes]:
    """Status and body of one request written byte by byte."""
    place = urlsplit(stack.url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=10) as line:
        line.sendall(request)
        raw = b""
        while b"\r\n\r\n" not in raw or not _whole(raw):
            piece = line.recv(65536)
            if not piece:
                break
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


def _whole(raw: bytes) -> bool:
    head, _, body = raw.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    ]
    return bool(lengths) and len(body) >= lengths[0]


def anonymous(stack: ServedStack) -> httpx.Client:
    return httpx.Client(base_url=stack.url, trust_env=False, timeout=10)


@pytest.mark.case("BR-24")
def test_a_preflight_passes_without_a_key_and_errors_can_be_read(
    api: Api, stack: ServedStack
) -> None:
    with anonymous(stack) as client:
        before = engine_metrics(stack)["headrace_engine_requests_claimed_total"]
        flight = client.options("/v1/chat/completions", headers={"origin": ORIGIN, **PREFLIGHT})
        refused = client.get("/v1/models", headers={"origin": ORIGIN})
        evil = {"origin": "https://evil.example"}
        stopped = client.options("/v1/chat/completions", headers={**evil, **PREFLIGHT})
        plain = client.options("/v1/chat/completions")
        after = engine_metrics(stack)["headrace_engine_requests_claimed_total"]
    answered = api.client.get("/v1/models", headers={"origin": ORIGIN})
    assert flight.status_code in {200, 204}
    for name in ("origin", "methods", "headers"):
        assert f"access-control-allow-{name}" in flight.headers
    assert check_error(refused, 401)["code"] == "invalid_api_key"
    assert answered.status_code == 200
    for answer in (refused, answered):
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "access-control-allow-credentials" not in answer.headers
    assert "access-control-allow-origin" not in stopped.headers
    assert plain.status_code == 401
    assert before == after


@pytest.mark.case("BR-25")
def test_keys_of_any_bytes_are_refused_and_leave_no_trace(stack: ServedStack) -> None:
    key = stack.key.encode()
    wrong = [
        b"Bearer caf\xe9",
        b"Bearer \xf0\x9f\xa4\x96",
        b"Bearer ",
        b"Bearer " + key + b"q",
        b"Bearer " + key[:-1],
        b"Bearer \x00",
    ]
    for value in wrong:
        status, body = spoken(
            stack,
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n",
        )
        if b"\x00" in value:  # the HTTP parser refuses it before us
            assert status in {400, 401}
            continue
        assert status == 401, value
        assert json.loads(body)["error"]["code"] == "invalid_api_key"
        assert key[:-1] not in body
    huge = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + b"k" * 65536
    assert spoken(stack, huge + b"\r\n\r\n")[0] in {401, 431}
    logs = "".join(path.read_text() for path in (stack.state_dir / "logs").glob("*.log"))
    assert stack.key[:-1] not in logs
    assert "kkkk" not in logs


@pytest.mark.case("BR-25")
def test_keys_of_any_bytes_are_refused_over_grpc_too(stack: ServedStack) -> None:
    key = stack.key
    values: list[str | bytes | None] = [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {key}",
        f"Bearer {key}q",
        f"Bearer {key[:-1]}",
        "Bearer " + "k" * 4000,
    ]
    with grpc.insecure_channel(f"127.0.0.1:{stack.grpc_port}") as channel:
        stub: Any = inference_pb2_grpc.InferenceStub(channel)
        for value in values:
            metadata = () if value is None else (("authorization", value),)
            with pytest.raises(grpc.RpcError) as failure:
                stub.ListModels(inference_pb2.ListModelsRequest(), metadata=metadata, timeout=10)
            assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED, value
            assert key[:-1] not in str(failure.value.details())
        listed = stub.ListModels(
            inference_pb2.ListModelsRequest(), metadata=(("authorization", f"Bearer {key}"),)
        )
        assert [model.id for model in listed.models] == [stack.model]


@pytest.mark.slow
@pytest.mark.case("BR-25")
@pytest.mark.parametrize("key", ["", "schl\u00fcssel-0123456789"])
def test_a_configured_key_that_is_empty_or_not_ascii_is_refused_at_start(
    tmp_path: Path, key: str
) -> None:
    ended = subprocess.run(
        headrace(
            *("serve", f"--api-key={key}", "--http-port=0", "--grpc-port=0"),
            *("--executor=echo", f"--state-dir={tmp_path}"),
        ),
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "--api-key: this API key cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not key or key not in ended.stderr


@pytest.mark.slow
@pytest.mark.case("BR-25")
def test_a_configured_key_may_end_in_a_newline(start: StartStack) -> None:
    stack = start("--executor=echo", "--quiet", "--api-key=my-own-key-0123456789\n")
    assert stack.key == "my-own-key-0123456789"
    with Api(stack) as api:
        assert api.client.get("/v1/models").status_code == 200
    with anonymous(stack) as client:
        for wrong in ("Bearer", "", f"Bearer {stack.key}x"):
            answer = client.get("/v1/models", headers={"authorization": wrong})
            assert answer.status_code == 401


@pytest.mark.case("BR-26")
def test_only_the_list_answers_without_a_key(api: Api, stack: ServedStack) -> None:
    document = api.client.get("/openapi.json").json()
    routes = [path.replace("{request_id}", "cmpl-1") for path in document["paths"]]
    assert len(routes) > 8
    open_paths = {"/health/live", "/health/ready", "/metrics"}
    with anonymous(stack) as client:
        for path in [*routes, "/docs", "/openapi.json", "/redoc", "/tokenize", "/admin/keys"]:
            for method in ("GET", "POST", "HEAD", "DELETE"):
                status = client.request(method, path).status_code
                if path in open_paths and method in {"GET", "HEAD"}:
                    assert status != 401
                else:
                    assert status == 401, (method, path)


@pytest.mark.case("BR-26")
@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/V1/models",
        "/x/../v1/models",
        "/v1/models/",
        "/v1%2Fmodels",
        "/v1/models;a",
        "/health/live/../../v1/models",
    ],
)
def test_no_spelling_of_a_path_reaches_a_handler(stack: ServedStack, path: str) -> None:
    status, _ = spoken(stack, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert status == 401
