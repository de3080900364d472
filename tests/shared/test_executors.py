"""One suite for every executor that runs without a GPU: what the loop relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from headrace_engine.executor.base import Executor
from headrace_engine.executor.cpu import CpuExecutor
from headrace_engine.executor.echo import EchoExecutor
from support import gguf_files
from support.decoding import Driver, Run

PROMPT = list(range(5, 45))
Make = Callable[[], Executor]


@pytest.fixture(params=["echo", "native", "torch"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes executors of one kind, equal to each other; closes them in the end."""
    made: list[Executor] = []
    if request.param == "torch":
        pytest.importorskip("torch")
    path = str(gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors()))

    def one() -> Executor:
        executor: Executor
        if request.param == "echo":
            executor = EchoExecutor(gguf_files.VOCABULARY)
        elif request.param == "native":
            executor = CpuExecutor.load(path, threads=2, kernels="native")
        else:
            executor = CpuExecutor.load(path, threads=1, kernels="torch")
        made.append(executor)
        return executor

    yield one
    for executor in made:
        executor.close()


def test_shape_and_block_bytes_are_known_before_the_start(make: Make) -> None:
    executor = make()
    assert executor.shape.vocabulary == gguf_files.VOCABULARY
    assert executor.shape.weights_version
    size = executor.block_bytes(16)
    assert size % 64 == 0
    assert size >= 16 * executor.shape.kv_bytes_per_token
    assert executor.block_bytes(32) > size


def test_equal_executors_say_the_same(make: Make) -> None:
    first, second = make(), make()
    assert first.shape == second.shape
    prompts = [PROMPT, [7], PROMPT[:16]]
    assert Driver(first).generate(prompts, 10) == Driver(second).generate(prompts, 10)


def test_tokens_do_not_depend_on_chunks_or_neighbours(make: Make) -> None:
    alone = Driver(make()).generate([PROMPT], 10)[0]
    crowd = Driver(make()).generate([[9, 9, 9], PROMPT, [3] * 20], 10, chunk=7)
    assert crowd[1] == alone


def test_two_phases_may_be_submitted_before_the_first_is_collected(make: Make) -> None:
    expected = Driver(make()).generate([PROMPT], 3)[0]
    executor = make()
    driver = Driver(executor)
    tokens: list[int] = []
    first = driver.batch([Run(0, 0, PROMPT, 0, driver.start(0, PROMPT))])
    executor.submit(first)
    second = driver.batch([Run(0, len(PROMPT), None, 1)])
    executor.submit(second)
    executor.collect(first)
    third = driver.batch([Run(0, len(PROMPT) + 1, None, 2)])
    executor.submit(third)
    executor.collect(second)
    executor.collect(third)
    for batch in (first, second, third):
        assert batch.output is not None
        tokens.append(int(batch.output.tokens[0]))
    assert tokens == expected


def test_a_slot_that_starts_again_forgets_who_was_there(make: Make) -> None:
    driver = Driver(make())
    fresh = Driver(make()).generate([PROMPT[:20]], 6)[0]
    driver.generate([PROMPT], 6, frequency_penalty=1.0)
    driver.tables.clear()
    assert driver.generate([PROMPT[:20]], 6)[0] == fresh


def test_a_sequence_goes_on_in_another_slot_with_its_tokens_as_context(make: Make) -> None:
    whole = Driver(make()).generate([PROMPT], 8)[0]
    driver = Driver(make())
    known = [*PROMPT, *whole[:5]]
    start = driver.start(3, known)
    # The prompt's length stays what it was: the rest was generated.
    start = type(start)(3, start.tokens, len(PROMPT), 0, start.sampling)
    tokens = [int(driver.run([Run(3, 0, known, 5, start)]).tokens[0])]
    tokens += [int(driver.run([Run(3, len(known) + i, None, 6 + i)]).tokens[0]) for i in range(2)]
    assert tokens == whole[5:]


def test_rows_that_only_prefill_give_no_token(make: Make) -> None:
    driver = Driver(make())
    output = driver.run([Run(0, 0, PROMPT, None, driver.start(0, PROMPT))])
    assert output.tokens.shape == (0,)
    assert output.failed.shape == (0,)


def test_logprobs_come_where_somebody_asks_as_wide_as_the_widest(make: Make) -> None:
    driver = Driver(make())
    rows = [
        Run(0, 0, PROMPT, 0, driver.start(0, PROMPT, logprobs=2)),
        Run(1, 0, PROMPT, 0, driver.start(1, PROMPT)),
        Run(2, 0, PROMPT, 0, driver.start(2, PROMPT, logprobs=5)),
    ]
    output = driver.run(rows)
    assert output.chosen_logprobs is not None
    assert output.top_ids is not None
    assert output.top_logprobs is not None
    assert output.chosen_logprobs.shape == (3,)
    assert output.top_ids.shape == output.top_logprobs.shape == (3, 5)
    for row, width in ((0, 2), (2, 5)):
        values = output.top_logprobs[row, :width]
        assert output.top_ids[row, 0] == output.tokens[row]
        assert values[0] == output.chosen_logprobs[row] <= 0
        assert (np.diff(values) <= 0).all()
        assert len(set(output.top_ids[row, :width].tolist())) == width


def test_a_bias_and_a_ban_are_obeyed(make: Make) -> None:
    driver = Driver(make())
    start = driver.start(
        0,
        PROMPT,
        bias_ids=(60, 61),
        bias_values=(100.0, 60.0),
        stop_token_ids=frozenset({60}),
        min_new_tokens=1,
    )
    assert driver.run([Run(0, 0, PROMPT, 0, start)]).tokens[0] == 61
    assert driver.run([Run(0, len(PROMPT), None, 1)]).tokens[0] == 60


def test_it_may_be_started_again_after_it_was_closed(make: Make) -> None:
    executor = make()
    expected = Driver(executor).generate([PROMPT], 4)
    executor.close()
    assert Driver(executor).generate([PROMPT], 4) == expected
