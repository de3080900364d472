"""The commands that talk to a running stack."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx
import pytest
from support.served import ServedStack, headrace, served_stack
from support.waiting import wait_until


def run(
    stack: ServedStack, *arguments: str, text: str | None = None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """A command that finds the stack by its state directory alone."""
    environ = stack.environ
    for name in ("HEADRACE_URL", "HEADRACE_API_KEY", "HEADRACE_GRPC"):
        del environ[name]
    done = subprocess.run(
        headrace(*arguments),
        capture_output=True,
        text=True,
        input=text,
        env=environ,
        timeout=100,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done


def test_chat_answers_one_message(stack: ServedStack) -> None:
    answer = run(stack, "chat", "What is the capital of France?", "--temperature=0")
    assert "Paris" in answer.stdout


def test_chat_goes_on_until_the_end_of_input(stack: ServedStack) -> None:
    said = "Hi! My name is Bob.\nWhat is my name?\n"
    answer = run(stack, "chat", "--temperature=0", "--max-tokens=20", text=said)
    assert answer.stdout.count("> ") == 3
    first, second = answer.stdout.split("> ")[1:3]
    assert first.strip()
    assert second.strip()


def test_cancel_ends_a_request_that_others_read(stack: ServedStack) -> None:
    body = {"model": stack.model, "prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    with stack.client() as client:
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            request = stream.headers["x-headrace-request-id"]
            assert run(stack, "cancel", request).stdout == f"cancelled {request}\n"
            assert "cancelled" in stream.read().decode()
    assert "HTTP 404" in run(stack, "cancel", "cmpl-nobody", code=1).stderr


def test_live_requests_are_listed_and_explained(stack: ServedStack) -> None:
    body = {"model": stack.model, "prompt": "Once", "max_tokens": 3000, "ignore_eos": True}
    with stack.client() as client:
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            request = stream.headers["x-headrace-request-id"]
            lines = stream.iter_lines()  # kept: without a reader the stream would be closed
            next(lines)
            (line,) = [line for line in run(stack, "ps").stdout.splitlines() if request in line]
            assert line.split()[1:4] == [stack.model, "running", "running"]
            said = run(stack, "why", request).stdout
            assert said.startswith("running: running, ")
            assert "engine: engine-" in said

        def said_now() -> str:
            return run(stack, "why", request).stdout

        wait_until(lambda: "finished: finished" in said_now(), said_now)
        said = said_now()
    assert "It has ended: cancelled." in said
    assert request not in run(stack, "ps").stdout
    assert "HTTP 404" in run(stack, "why", "cmpl-nobody", code=1).stderr


def status_of(stack: ServedStack, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{stack.url}/v1/models", headers=headers, trust_env=False).status_code


def test_keys_are_made_listed_and_revoked(stack: ServedStack) -> None:
    made = run(stack, "keys", "create", "--name=team x", "--expires=30d", "--max-concurrency=2")
    key = made.stdout.strip()
    assert status_of(stack, key) == 200
    public_id = key.split("_")[1]
    (line,) = [line for line in run(stack, "keys", "list").stdout.splitlines() if "team x" in line]
    assert line.startswith(public_id)
    assert "at most 2 at once" in line
    assert key not in line
    run(stack, "keys", "revoke", public_id)
    # gateways ask again within seconds
    wait_until(lambda: status_of(stack, key) == 401, "it still opens", every_s=0.1)
    assert "revoked" in run(stack, "keys", "list").stdout
    assert "no key nobody" in run(stack, "keys", "revoke", "nobody", code=1).stderr


def test_a_key_with_a_limit_on_requests_a_minute_meets_it(stack: ServedStack) -> None:
    key = run(stack, "keys", "create", "--requests-per-minute=1").stdout.strip()
    body = {"model": stack.model, "prompt": "Hello", "max_tokens": 1}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(headers=headers, timeout=100, trust_env=False) as client:
        # a minute for both gateways together
        first, second = (client.post(f"{url}/v1/completions", json=body) for url in stack.urls)
    assert first.status_code == 200, first.text
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert second.status_code == 429, second.text
    assert second.json()["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(second.headers["retry-after"]) <= 60
    assert "1 requests a minute" in run(stack, "keys", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scope=everything"], "scopes are some of"),
        (["--band=9"], "band is 0"),
        (["--expires=soon"], "no span of time"),
        (["--max-concurrency=0"], "max_concurrency is 1 to"),
    ],
)
def test_keys_that_make_no_sense_are_refused(
    stack: ServedStack, arguments: list[str], words: str
) -> None:
    assert words in run(stack, "keys", "create", *arguments, code=1).stderr


def test_exported_keys_work_again_after_the_servers_data_is_lost(tmp_path: Path) -> None:
    export = tmp_path / "keys.jsonl"
    with served_stack(tmp_path, ["--executor=echo"]) as stack:
        key = run(stack, "keys", "create").stdout.strip()
        assert "wrote 2 keys" in run(stack, "keys", "export", str(export)).stdout
        assert export.stat().st_mode & 0o777 == 0o600
    for path in sorted((stack.state_dir / "valkey").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with served_stack(tmp_path, ["--executor=echo"]) as stack:
        assert status_of(stack, stack.key) == 200  # the stack's own key heals by itself
        assert status_of(stack, key) == 401
        assert "imported 2 keys" in run(stack, "keys", "import", str(export)).stdout
        wait_until(lambda: status_of(stack, key) == 200, "it does not open", every_s=0.1)


def test_doctor_finds_nothing_wrong_with_a_running_stack(stack: ServedStack) -> None:
    out = run(stack, "doctor").stdout
    assert out.endswith("nothing is wrong\n")
    for url in stack.urls:
        assert f"gateway {url}: ready, and the stored key is accepted" in out


def test_verify_finds_every_promise_kept(stack: ServedStack) -> None:
    told = run(stack, "verify", "--max-tokens=16").stdout.splitlines()
    assert [line.split(":")[0] for line in told] == [
        "ok    keys",
        "ok    stream and resume",
        "ok    cancel",
        "ok    limit",
        "ok    gateway metrics",
        "ok    engine metrics",
    ]
    assert "429, to come back in" in told[3]


def test_bench_measures_the_served_stack(stack: ServedStack) -> None:
    sizes = ["--requests=3", "--concurrency=2", "--prompt-tokens=16", "--output-tokens=8"]
    out = run(stack, "bench", "served", *sizes).stdout
    assert re.search(r"^3 requests, 24 tokens out in .* tokens/s$", out, re.MULTILINE)


@pytest.mark.torch
def test_bench_measures_the_engine_alone(stack: ServedStack) -> None:
    sizes = ["--requests=2", "--concurrency=2", "--prompt-tokens=16", "--output-tokens=8"]
    out = run(stack, "bench", "offline", *sizes).stdout
    assert re.search(r"^2 requests, 16 tokens out in .* tokens/s$", out, re.MULTILINE)


def test_reset_is_refused_while_the_stack_runs(stack: ServedStack) -> None:
    assert "already runs" in run(stack, "reset", "--yes", code=1).stderr
    assert (stack.state_dir / "api_key").exists()
