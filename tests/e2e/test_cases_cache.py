"""The prefix cache and its pool: hits that are true, and room that is there."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest
from support.api import ALPHABET_PROMPT, Api, Body, check_error
from support.idle import check_idle
from support.served import ServedStack, StartStack, headrace, served_stack

BLOCK = 16
"""Tokens of a block, as the default settings have it."""
RED, HELLO = 2382, 28120


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def logprobs(answer: dict[str, Any]) -> list[float]:
    return answer["choices"][0]["logprobs"]["token_logprobs"]


@pytest.mark.case("BR-20")
@pytest.mark.parametrize("length", [15, 16, 17, 32, 33, 128])
def test_a_prompt_that_is_wholly_cached_says_the_same(api: Api, length: int) -> None:
    prompt = [HELLO, RED] * (length // 2) + [HELLO] * (length % 2)
    body: Body = {"prompt": prompt, "temperature": 0, "max_tokens": 8, "logprobs": 1}

    def ask(salt: str) -> dict[str, Any]:
        answer = api.completion({**body, "cache_salt": salt})
        assert answer.status_code == 200, answer.text
        return answer.json()

    apart = ask(f"apart {length}")
    answers = [ask("together") for _ in range(3)]
    assert cached(apart) == 0
    for answer in answers:
        assert answer["choices"][0]["text"] == apart["choices"][0]["text"]
        assert logprobs(answer) == pytest.approx(logprobs(apart), abs=1e-3)  # pyright: ignore[reportUnknownMemberType]
        assert cached(answer) <= length - 1
        assert cached(answer) % BLOCK == 0
    assert cached(answers[-1]) == (length - 1) // BLOCK * BLOCK


@pytest.mark.slow
@pytest.mark.case("BR-20")
def test_with_the_cache_off_everything_is_said_alike(api: Api, start: StartStack) -> None:
    bodies: list[Body] = [
        {
            "prompt": [HELLO, RED] * (length // 2) + [HELLO] * (length % 2),
            "temperature": 0,
            "max_tokens": 8,
            "logprobs": 1,
        }
        for length in (15, 16, 17, 32, 33, 128)
    ]
    with_it = [api.completion(body).json() for body in bodies]
    stack = start("--quiet", environ={"HEADRACE_ENGINE_PREFIX_CACHE": "false"})
    with Api(stack) as plain:
        for body, expected in zip(bodies, with_it, strict=True):
            answers = [plain.completion(body).json() for _ in range(2)]
            for answer in answers:
                assert answer["choices"][0]["text"] == expected["choices"][0]["text"]
                assert logprobs(answer) == pytest.approx(logprobs(expected), abs=1e-3)  # pyright: ignore[reportUnknownMemberType]
                assert cached(answer) == 0
        check_idle(stack)


@pytest.mark.case("BR-20")
def test_a_second_turn_uses_the_first_one_s_blocks(api: Api) -> None:
    body: Body = {"temperature": 0, "max_tokens": 8, "cache_salt": "turns"}
    first = api.completion({**body, "prompt": ALPHABET_PROMPT}).json()
    longer = ALPHABET_PROMPT + first["choices"][0]["text"] + " O"
    second = api.completion({**body, "prompt": longer}).json()
    known = first["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens"] == known + 9
    assert cached(second) >= known // BLOCK * BLOCK
    alone = api.completion({**body, "prompt": longer, "cache_salt": "alone"}).json()
    assert second["choices"][0]["text"] == alone["choices"][0]["text"]


@pytest.mark.case("BR-21")
def test_another_salt_or_another_beginning_hits_nothing(api: Api) -> None:
    prompt = [HELLO, RED] * (5 * BLOCK)
    body: Body = {"temperature": 0, "max_tokens": 2}
    uses = [{"cache_salt": "salt a"}, {"cache_salt": "salt b"}]
    first = [api.completion({**body, "prompt": prompt, **use}).json() for use in uses]
    again = [api.completion({**body, "prompt": prompt, **use}).json() for use in uses]
    assert [cached(answer) for answer in first] == [0, 0]
    assert all(cached(answer) == 9 * BLOCK for answer in again)
    other = api.completion({**body, "prompt": [RED, *prompt[1:]], "cache_salt": "salt a"}).json()
    assert cached(other) == 0


@pytest.mark.case("BR-21")
def test_a_tenant_and_a_salt_of_the_same_name_share_nothing(api: Api) -> None:
    command = headrace("keys", "create", "--name=other", "--tenant=acme")
    environ = api.stack.environ
    made = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    body: Body = {"prompt": [HELLO, 28] * (5 * BLOCK), "temperature": 0, "max_tokens": 2}
    answers: list[dict[str, Any]] = []
    with Api(replace(api.stack, key=made.stdout.strip())) as tenant:
        for asks, more in ((api, {}), (api, {"cache_salt": "acme"}), (tenant, {})):
            answers.append(asks.completion({**body, **more}).json())
        again = tenant.completion(dict(body)).json()
    assert [cached(answer) for answer in answers] == [0, 0, 0]
    assert cached(again) == 9 * BLOCK
    assert len({answer["choices"][0]["text"] for answer in [*answers, again]}) == 1


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    """A pool of 40 blocks: as many tokens as one sequence may have."""
    folder = tmp_path_factory.mktemp("tiny")
    environ = {"HEADRACE_ENGINE_CACHE_BLOCKS": "40", "HEADRACE_ENGINE_CONTEXT_TOKENS": "640"}
    with served_stack(folder, ["--quiet"], environ) as stack, Api(stack) as made:
        yield made


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    """A pool of 32 blocks, 512 tokens, under a context of 2048."""
    environ = {"HEADRACE_ENGINE_CACHE_BLOCKS": "32", "HEADRACE_ENGINE_CONTEXT_TOKENS": "2048"}
    with served_stack(tmp_path_factory.mktemp("short"), ["--quiet"], environ) as stack:
        with Api(stack) as made:
            yield made


@pytest.mark.slow
@pytest.mark.case("BR-18")
def test_a_pool_smaller_than_the_context_is_served_and_says_so(short: Api) -> None:
    log = (short.stack.state_dir / "logs" / "engine.log").read_text()
    (line,) = [line for line in log.splitlines() if "pool.smaller_than_context" in line]
    assert "context_tokens=2048" in line
    assert "pool_tokens=512" in line
    (model,) = short.client.get("/v1/models").json()["data"]
    assert model["max_model_len"] == 2048


@pytest.mark.slow
@pytest.mark.case("BR-18")
def test_what_can_never_fit_the_pool_is_refused_and_blocks_nobody(short: Api) -> None:
    small: Body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    expected = short.text(small)
    with ThreadPoolExecutor(6) as threads:
        big = threads.submit(short.completion, {"prompt": [HELLO] * 600, "max_tokens": 1})
        others = [threads.submit(short.text, small) for _ in range(5)]
        error = check_error(big.result(), 400)
        assert [other.result() for other in others] == [expected] * 5
    assert error["code"] == "prompt_never_fits"
    assert error["param"] == "prompt"
    assert "600" in error["message"]
    assert "512" in error["message"]
    error = check_error(short.completion({"prompt": [HELLO] * 512, "max_tokens": 1}), 400)
    assert error["code"] == "prompt_never_fits"
    check_idle(short.stack)


@pytest.mark.slow
@pytest.mark.case("BR-18")
def test_a_lone_sequence_that_fills_the_pool_ends_there(short: Api) -> None:
    def outgrow(prompt: int, more: int, token: int = HELLO) -> dict[str, Any]:
        answer = short.completion(
            {
                "prompt": [token] * prompt,
                "max_tokens": more,
                "ignore_eos": True,
                "temperature": 0,
            }
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        return answer.json()["usage"]

    assert outgrow(300, 400)["completion_tokens"] == 512 - 300
    assert outgrow(511, 2)["completion_tokens"] == 1
    small: Body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    expected = short.text(small)
    with ThreadPoolExecutor(4) as threads:  # not alone, one waits for the other to end
        large = [threads.submit(outgrow, 480, 400, token) for token in (HELLO, RED)]
        beside = [threads.submit(short.text, small) for _ in range(2)]
        assert [each.result() for each in beside] == [expected] * 2
        assert [each.result()["completion_tokens"] for each in large] == [512 - 480] * 2
    check_idle(short.stack)


@pytest.mark.slow
@pytest.mark.case("BR-18")
def test_a_sequence_may_use_a_pool_as_large_as_the_context_to_its_last_token(tiny: Api) -> None:
    error = check_error(tiny.completion({"prompt": [HELLO] * 700, "max_tokens": 1}), 400)
    assert error["code"] == "context_length_exceeded"
    outgrows = tiny.completion(
        {"prompt": [HELLO] * 600, "max_tokens": 40, "ignore_eos": True, "temperature": 0}
    )
    assert outgrows.status_code == 200, outgrows.text
    answer = outgrows.json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 40
    check_idle(tiny.stack)


@pytest.mark.slow
@pytest.mark.case("BR-21")
def test_evicted_blocks_are_never_hit(tiny: Api) -> None:
    def prompt(number: int) -> list[int]:
        return [HELLO + number, RED] * (5 * BLOCK)

    def ask(tokens: list[int], **more: object) -> dict[str, Any]:
        body: Body = {"prompt": tokens, "temperature": 0, "max_tokens": 4, **more}
        answer = tiny.completion(body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    first = ask(prompt(0))
    for number in range(1, 9):
        ask(prompt(number))
    again = ask(prompt(0))
    apart = ask(prompt(0), cache_salt="apart")
    texts = {answer["choices"][0]["text"] for answer in (first, again, apart)}
    assert len(texts) == 1
    assert cached(ask([RED, *prompt(0)[1:]])) == 0
    with ThreadPoolExecutor(8) as threads:
        rounds = [
            [answer["choices"][0]["text"] for answer in threads.map(ask, map(prompt, range(8)))]
            for _ in range(2)
        ]
    assert rounds[0] == rounds[1]
    check_idle(tiny.stack)


@pytest.mark.slow
@pytest.mark.case("BR-22")
def test_a_long_prompt_stops_neither_streams_nor_newcomers(api: Api, stack: ServedStack) -> None:
    order: list[str] = []
    began = threading.Event()

    def stream(name: str, body: Body) -> None:
        asked = {"model": stack.model, "temperature": 0, **body, "stream": True}
        with httpx.Client(
            base_url=stack.url, headers=api.client.headers, timeout=120, trust_env=False
        ) as client:
            with client.stream("POST", "/v1/completions", json=asked) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: {"):
                        order.append(name)
                        began.set()

    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(
            stream, "A", {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True}
        )
        began.wait(60)
        long = threads.submit(
            stream, "B", {"prompt": [HELLO, RED, 28] * 900, "max_tokens": 1, "cache_salt": "long"}
        )
        time.sleep(0.3)
        short = threads.submit(stream, "C", {"prompt": "Hello", "max_tokens": 1})
        for future in (running, long, short):
            future.result()
    assert order.index("C") < order.index("B")
    before_long = order[: order.index("B")].count("A")
    assert before_long >= 10, "the running stream stood still while the long prompt was read"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.case("BR-22")
def test_short_prompts_that_keep_coming_do_not_keep_a_long_one_out(stack: ServedStack) -> None:
    small: Body = {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    large: Body = {
        "prompt": [HELLO, RED, 28] * 200,
        "max_tokens": 4,
        "temperature": 0,
        "cache_salt": "kept out",
    }
    done = threading.Event()
    with Api(stack, timeout_s=300) as api, ThreadPoolExecutor(4) as threads:
        expected = api.text(small)

        def ask() -> int:
            """Short requests, one after the other, until the long one is answered."""
            count = 0
            while not done.is_set() and count < 2000:
                salt = f"{threading.get_ident()} {count}"
                assert api.text({**small, "cache_salt": salt}) == expected
                count += 1
            return count

        short = [threads.submit(ask) for _ in range(2)]
        try:
            answer = api.completion(large)
        finally:
            done.set()
        counts = [each.result() for each in short]
        assert answer.status_code == 200, answer.text
        assert all(0 < count < 2000 for count in counts), counts
        assert answer.json()["choices"][0]["text"] == api.text({**large, "cache_salt": "alone"})
