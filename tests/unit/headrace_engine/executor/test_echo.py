"""EchoExecutor: tokens that a test can foretell."""

from __future__ import annotations

import time
from typing import Any

import pytest
from headrace_engine.executor.base import Executor
from headrace_engine.executor.echo import EchoExecutor
from support.batch import decode_batch, limits


def tokens(executor: Executor, count: int, **sampling: Any) -> list[int]:
    executor.start(limits())
    said: list[int] = []
    for i in range(1, count + 1):
        batch = decode_batch(i, first=i == 1, **sampling)
        executor.submit(batch)
        executor.collect(batch)
        assert batch.output is not None
        assert not batch.output.failed.any()
        said.append(int(batch.output.tokens[0]))
    return said


@pytest.mark.rule("executor.no-device-above")
def test_it_repeats_the_prompt_for_ever_without_a_stop_token() -> None:
    assert tokens(EchoExecutor(100), 7) == [1, 2, 3, 1, 2, 3, 1]


def test_it_stops_after_the_prompt_if_there_is_a_stop_token() -> None:
    assert tokens(EchoExecutor(100), 4, stop_token_ids=frozenset([9, 8])) == [1, 2, 3, 8]


def test_stop_tokens_are_banned_until_min_new_tokens() -> None:
    said = tokens(EchoExecutor(100), 6, stop_token_ids=frozenset([2, 8]), min_new_tokens=5)
    assert said == [1, 3, 3, 1, 3, 2]


def test_a_large_bias_chooses_and_a_large_negative_one_bans() -> None:
    assert tokens(EchoExecutor(100), 2, bias_ids=(7, 6), bias_values=(100.0, 60.0)) == [7, 7]
    assert tokens(EchoExecutor(100), 3, bias_ids=(2,), bias_values=(-100.0,)) == [1, 3, 3]
    said = tokens(
        EchoExecutor(100),
        3,
        bias_ids=(9,),
        bias_values=(100.0,),
        stop_token_ids=frozenset([9]),
        min_new_tokens=2,
    )
    assert said == [1, 2, 9]


def test_in_mode_attempt_the_tokens_tell_who_decided_them() -> None:
    first = tokens(EchoExecutor(100, mode="attempt"), 3, attempt=1)
    second = tokens(EchoExecutor(100, mode="attempt"), 3, attempt=2)
    assert first == [2, 3, 4]
    assert second == [3, 4, 5]


def test_logprobs_are_those_of_a_model_that_is_certain() -> None:
    executor = EchoExecutor(100)
    batch = decode_batch(1, first=True, logprobs=2)
    executor.submit(batch)
    executor.collect(batch)
    assert batch.output is not None
    assert batch.output.chosen_logprobs is not None
    assert batch.output.top_ids is not None
    assert batch.output.top_logprobs is not None
    assert batch.output.chosen_logprobs.tolist() == [0.0]
    assert batch.output.top_ids.tolist() == [[1, 2]]
    assert batch.output.top_logprobs[0, 0] > batch.output.top_logprobs[0, 1]


def test_logprobs_are_no_more_than_there_are_tokens() -> None:
    executor = EchoExecutor(5)
    batch = decode_batch(1, first=True, logprobs=20)
    executor.submit(batch)
    executor.collect(batch)
    assert batch.output is not None
    assert batch.output.top_ids is not None
    assert batch.output.top_logprobs is not None
    assert batch.output.top_ids.tolist() == [[1, 2, 3, 4, 0]]
    assert batch.output.top_logprobs.shape == (1, 5)


def test_a_step_takes_the_time_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    tokens(EchoExecutor(100, step_s=0.25), 2)
    assert slept == [0.25, 0.25]


def test_a_block_is_as_large_as_declared() -> None:
    executor = EchoExecutor(100, kv_bytes_per_token=10)
    assert executor.block_bytes(16) == 192
    assert executor.shape.kv_bytes_per_token == 10
    executor.close()
