"""The server under a running stack: emptied, gone and back empty, without leave to write."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from headrace_contracts import keys
from headrace_transport.options import WireOptions
from headrace_transport.server import Server
from support.api import Api, Body, check_error
from support.figures import engine_metrics, process_id
from support.idle import check_idle
from support.served import ServedStack, served_stack
from support.waiting import wait_until

STEP_MS = 20
SMALL: Body = {"prompt": "again and again", "max_tokens": 3}
LONG: Body = {"prompt": "again and " * 120, "max_tokens": 200}
"""Four seconds of the engine's time: while it runs, the others queue up behind it."""
SHORT: Body = {**LONG, "max_tokens": 10}
FINISHED = 'headrace_engine_requests_finished_total{reason="length"}'


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServedStack]:
    """An echo engine that runs one request at a time, one more at hand, the others queued."""
    environ = {
        "HEADRACE_ENGINE_MAX_BATCH": "1",
        "HEADRACE_ENGINE_MAX_WAITING": "1",
        "HEADRACE_ENGINE_ECHO_STEP_MS": str(STEP_MS),
    }
    folder = tmp_path_factory.mktemp("outage")
    with served_stack(folder, ["--executor=echo", "--quiet"], environ) as served:
        yield served


def tell_server(stack: ServedStack, *words: str) -> object:
    """A command to the stack's own server, past every wire of ours."""

    async def tell() -> object:
        server = Server(stack.redis_url, password=stack.redis_password, options=WireOptions())
        try:
            return await server.command(*words)
        finally:
            await server.close()

    return asyncio.run(tell())


def health(stack: ServedStack, which: str) -> int:
    return httpx.get(f"{stack.url}/health/{which}", trust_env=False).status_code


def check_comes_back(api: Api) -> None:
    """Asks until it is answered; whatever comes before says that it is worth another try."""

    def answers() -> bool:
        answer = api.completion(SMALL)
        if answer.status_code == 200:
            return True
        check_error(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1
        return False

    wait_until(answers, "it does not come back", every_s=0.2)


class Queue:
    """Requests of which the engine runs the first, a long one, while the rest wait."""

    def __init__(self, api: Api, threads: ThreadPoolExecutor, count: int) -> None:
        """Returns when they have queued up. Needs as many threads."""
        self._texts = [api.text(SHORT)] * (count - 1)
        self._texts.insert(0, api.text(LONG))
        running = "headrace_engine_sequences_running"
        self._asked = [threads.submit(api.completion, LONG)]
        wait_until(lambda: engine_metrics(api.stack)[running] == 1, "it does not run")
        self._asked += [threads.submit(api.completion, SHORT) for _ in range(count - 1)]
        queue = keys.queued(api.stack.model)
        wait_until(lambda: tell_server(api.stack, "ZCARD", queue) == count - 2, "they do not queue")

    def check(self) -> None:
        """Each is answered, as if nothing had happened."""
        for each, text in zip(self._asked, self._texts, strict=True):
            answer = each.result()
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["text"] == text


class Watch:
    """What the stack's processes wrote and worked between two moments."""

    def __init__(self, stack: ServedStack) -> None:
        self._logs = [stack.state_dir / "logs" / f"{name}.log" for name in ("gateway", "engine")]
        self._pids = [process_id(stack, name) for name in ("gateway", "engine")]
        self._began = time.monotonic()
        self._lines = self._count()
        self._worked = self._work()

    def check(self) -> None:
        """Neither floods its log nor turns in circles, beyond a burst that news may cause."""
        seconds = time.monotonic() - self._began
        assert self._count() - self._lines < 100 + 50 * seconds, "a flooded log"
        for before, now in zip(self._worked, self._work(), strict=True):
            assert now - before < 1 + 0.6 * seconds, "a busy loop"

    def _count(self) -> int:
        return sum(len(path.read_text().splitlines()) for path in self._logs)

    def _work(self) -> list[float]:
        """Processor seconds of each."""
        ticks = os.sysconf("SC_CLK_TCK")
        fields = [
            Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in self._pids
        ]
        return [(int(each[11]) + int(each[12])) / ticks for each in fields]


@pytest.mark.slow
@pytest.mark.case("BR-27")
def test_an_idle_stack_forgets_nothing_for_long(stack: ServedStack) -> None:
    with Api(stack) as api:
        text = api.text(SMALL)
        tell_server(stack, "FLUSHALL")
        check_comes_back(api)
        assert api.text(SMALL) == text
    check_idle(stack)


@pytest.mark.slow
@pytest.mark.case("BR-27")
def test_what_was_queued_runs_once_after_a_flush(stack: ServedStack) -> None:
    with Api(stack) as api, ThreadPoolExecutor(6) as threads:
        before = engine_metrics(stack)
        queue = Queue(api, threads, 6)
        watch = Watch(stack)
        tell_server(stack, "FLUSHALL")
        check_comes_back(api)
        queue.check()
        watch.check()
        check_idle(stack)
        # six, two before them and a small one, and none of them twice; one whose end crossed the
        # flush does not count, as the server knew nothing of it any more
        assert 8 <= engine_metrics(stack)[FINISHED] - before.get(FINISHED, 0) <= 9
        check_cancel_works(api)


@pytest.mark.slow
@pytest.mark.case("BR-27")
def test_a_server_that_comes_back_empty_is_filled_again(stack: ServedStack) -> None:
    with Api(stack) as api, ThreadPoolExecutor(6) as threads:
        data = stack.state_dir / "valkey"
        queue = Queue(api, threads, 6)
        watch = Watch(stack)
        data.rename(data.with_name("away"))  # without its folder it does not start again
        try:
            (pid,) = stack.pids("valkey-server")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: health(stack, "ready") == 503, "ready without a server")
            assert health(stack, "live") == 200
            answer = api.completion(SMALL)
            check_error(answer, 503)
            assert int(answer.headers["retry-after"]) >= 1
            watch.check()
        finally:
            data.mkdir(mode=0o700)
        wait_until(lambda: health(stack, "ready") == 200, "not ready with a server")
        check_comes_back(api)
        queue.check()
        watch.check()
        check_idle(stack)
        check_cancel_works(api)
        shutil.rmtree(data.with_name("away"))


@pytest.mark.slow
@pytest.mark.case("BR-27")
def test_a_server_that_may_not_write_for_a_while_loses_nothing(stack: ServedStack) -> None:
    with Api(stack) as api, ThreadPoolExecutor(6) as threads:
        queue = Queue(api, threads, 4)
        watch = Watch(stack)
        tell_server(stack, "REPLICAOF", "127.0.0.1", "1")
        try:
            wait_until(lambda: health(stack, "ready") == 503, "ready without a server that writes")
            assert health(stack, "live") == 200
            check_error(api.completion(SMALL), 503)
            time.sleep(3)
        finally:
            tell_server(stack, "REPLICAOF", "NO", "ONE")
        check_comes_back(api)
        queue.check()
        watch.check()
        check_idle(stack)


def check_cancel_works(api: Api) -> None:
    """A cancel reaches the engine again."""
    body: Mapping[str, object] = {
        "model": api.stack.model,
        **LONG,
        "max_tokens": 400,
        "ignore_eos": True,
    }
    with api.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        request = answer.headers["x-headrace-request-id"]
        pieces = answer.iter_raw()
        first = next(pieces)
        assert api.client.delete(f"/v1/requests/{request}").json()["cancelled"] is True, first
        b"".join(pieces)
    check_idle(api.stack)
