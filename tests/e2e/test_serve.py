"""``headrace serve`` as a person meets it: ready, refused, stopped, killed, restarted."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from support import smollm2
from support.served import (
    ServedStack,
    clean_environ,
    headrace,
    served_stack,
    stop,
)
from support.waiting import wait_until

ECHO = ["--executor=echo"]


def is_running(pid: int) -> bool:
    """Alive and not a zombie that waits for a reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)), "a process was left behind")


def wait_closed(url: str) -> None:
    """The last thread of a process that was killed closes its sockets, a moment later."""

    def closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", httpx.URL(url).port or 0)) != 0

    wait_until(closed, f"{url} is still open")


def refused(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    """``headrace serve`` that says no, with what it says."""
    found = subprocess.run(
        headrace("serve", "--grpc-port=0", f"--state-dir={state}", *arguments),
        capture_output=True,
        text=True,
        env=clean_environ(),
        timeout=60,
        check=False,
    )
    assert found.returncode == 1
    return found


def ask(stack: ServedStack, url: str | None = None) -> httpx.Response:
    with stack.client() as client:
        return client.post(
            f"{url or stack.url}/v1/completions",
            json={"model": stack.model, "prompt": "Hello", "max_tokens": 3},
        )


def test_the_printed_curl_line_works(stack: ServedStack) -> None:
    text = stack.output.read_text()
    found = re.search(r"^curl .*?\}'$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    answer = subprocess.run(
        ["bash", "-c", found[0]], capture_output=True, text=True, timeout=100, check=True
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"]


def test_it_says_ready_on_a_line_of_its_own_and_names_every_gateway(stack: ServedStack) -> None:
    lines = stack.output.read_text().splitlines()
    assert f"ready {stack.urls[0]}" in lines
    assert f"also at {stack.urls[1]}" in lines
    for url in stack.urls:
        assert ask(stack, url).status_code == 200


def test_state_is_for_its_owner_alone(stack: ServedStack) -> None:
    for path in [stack.state_dir, *stack.state_dir.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_second_stack_with_the_same_state_is_refused(stack: ServedStack) -> None:
    second = refused("--http-port=0", state=stack.state_dir)
    assert f"already runs with the state directory {stack.state_dir}" in second.stderr
    assert stack.url in second.stderr


def test_a_port_in_use_is_told_before_anything_starts(stack: ServedStack, tmp_path: Path) -> None:
    port = httpx.URL(stack.url).port
    second = refused(f"--http-port={port}", state=tmp_path / "s")
    assert f"Port {port} cannot be used: another program listens on it" in second.stderr
    assert "--http-port" in second.stderr
    assert not list((tmp_path / "s" / "run").iterdir())


def test_nothing_is_left_after_a_stop_and_the_key_is_used_again(tmp_path: Path) -> None:
    with served_stack(tmp_path, ECHO) as first:
        assert ask(first).status_code == 200
        pids = [*first.pids("headrace_"), *first.pids("valkey")]
        assert len(pids) == 3
    wait_gone(pids)
    wait_closed(first.url)
    assert not (first.state_dir / "run" / "stack.json").exists()
    with served_stack(tmp_path, ECHO) as second:
        assert second.key == first.key
        assert ask(second).status_code == 200


def test_nothing_is_left_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with served_stack(tmp_path, ECHO) as stack:
        pids = [*stack.pids("headrace_"), *stack.pids("valkey")]
        os.kill(stack.pid, signal.SIGKILL)
        wait_gone(pids)
        wait_closed(stack.url)
    with served_stack(tmp_path, ECHO) as again:  # neither lock nor files are in the way
        assert ask(again).status_code == 200


@pytest.mark.parametrize("name", ["headrace_engine", "headrace_gateway", "valkey-server"])
def test_a_process_that_dies_is_restarted_and_requests_work_again(
    tmp_path: Path, name: str
) -> None:
    with served_stack(tmp_path, ECHO) as stack:
        (first,) = stack.pids(name)
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: "is ready again" in stack.output.read_text(),
            stack.output.read_text,
            within_s=60,
        )
        assert "was killed by SIGKILL; restart 1 of 5" in stack.output.read_text()

        def works() -> bool:
            try:
                return ask(stack).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(works, stack.output.read_text, within_s=60, every_s=0.1)


def test_a_key_of_ones_own_becomes_the_stacks_key(tmp_path: Path) -> None:
    own = "sk-my-own-key-0123456789"
    with served_stack(tmp_path, [*ECHO, f"--api-key={own}"]) as stack:
        assert stack.key == own
        assert ask(stack).status_code == 200
        assert httpx.get(f"{stack.url}/v1/models").status_code == 401


def test_a_key_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    process = refused("--api-key=short", "--http-port=0", state=tmp_path / "s")
    assert "--api-key: this API key cannot be used: it has 5 characters" in process.stderr


@pytest.mark.case("BR-10")
@pytest.mark.parametrize("stream", [False, True])
def test_a_folders_own_template_is_used_and_its_refusal_is_a_400(
    refusing_stack: ServedStack, stream: bool
) -> None:
    turn = {"role": "user", "content": "Hi"}
    with refusing_stack.client() as client:
        for turns, status in (([turn], 200), ([turn, turn], 400)):
            answer = client.post(
                "/v1/chat/completions",
                json={
                    "model": refusing_stack.model,
                    "messages": turns,
                    "max_tokens": 2,
                    "stream": stream,
                },
            )
            assert answer.status_code == status
        error = answer.json()["error"]
    assert error["message"] == "turns must alternate"
    assert error["type"] == "invalid_request_error"


@pytest.fixture(scope="module")
def refusing_stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServedStack]:
    """Serves a folder whose template wants turns to alternate; no weights, as nothing runs."""
    folder = tmp_path_factory.mktemp("picky")
    for name, data in smollm2.tokenizer_files().files.items():
        (folder / name).write_bytes(data)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('turns must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
    )
    with served_stack(tmp_path_factory.mktemp("stack"), [str(folder), *ECHO]) as stack:
        yield stack


def test_a_model_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    process = refused(str(tmp_path / "no-model"), "--http-port=0", state=tmp_path / "s")
    assert "engine ended with code 2" in process.stderr
    assert "no-model" in process.stderr
    assert "ready http" not in process.stdout


def test_a_stop_while_the_model_loads_is_clean(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with output.open("w") as sink:
        process = subprocess.Popen(
            headrace("serve", "--http-port=0", "--grpc-port=0"),
            stdout=sink,
            stderr=sink,
            env=clean_environ() | {"HEADRACE_STATE_DIR": str(tmp_path / "s")},
        )
    wait_until(lambda: "engine.starting" in output.read_text(), output.read_text, within_s=60)
    assert stop(process) == 0
    assert "ready http" not in output.read_text()
    assert output.read_text().splitlines()[-1] == "stopped"
