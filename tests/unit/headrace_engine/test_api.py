"""The offline API on the echo executor: token i of an answer is token i of its prompt."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from headrace_contracts.codes import Code, FinishReason
from headrace_engine.api import (
    Completion,
    Engine,
    EngineAsleep,
    EngineSettings,
    Output,
    PromptIds,
    PromptTooLong,
    RequestFailed,
    Sampling,
)
from headrace_engine.api_stream import ENGINE_THREADS
from headrace_engine.errors import (
    EngineDraining,
    EngineFailed,
    ModelRejected,
    RequestDropped,
    RequestRejected,
)
from headrace_engine.executor.base import ExecutorLimits
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel, Percent
from headrace_engine.state.batch import BatchData
from headrace_kit.errors import SettingsError

VOCABULARY = 1000
LONG = Sampling(100_000)


class Device(EchoExecutor):
    """Knows whether it is started, breaks when told, and can give rows that are not finite."""

    def __init__(self, version: str = "1", vocabulary: int = VOCABULARY) -> None:
        super().__init__(vocabulary, step_s=0.0005, context_tokens=1 << 17)
        self._shape = replace(self.shape, weights_version=version)
        self.started = 0
        self.broken = self.not_finite = False

    def start(self, limits: ExecutorLimits) -> None:
        self.started += 1

    def collect(self, batch: BatchData) -> None:
        if self.broken:
            raise RuntimeError("the device broke")
        super().collect(batch)
        if self.not_finite:
            assert batch.output is not None
            batch.output.failed[:] = True

    def close(self) -> None:
        self.started -= 1


class Shelf:
    """Weights by path, and every device that was made of them."""

    def __init__(self) -> None:
        self.devices: list[weakref.ref[Device]] = []
        self.gone = False

    def load(self, settings: EngineSettings, percent: Percent) -> LoadedModel:
        if self.gone:
            raise ModelRejected(f"{settings.model}: no such file")
        made = Device(settings.model, VOCABULARY + 1 if settings.model == "wider" else VOCABULARY)
        self.devices.append(weakref.ref(made))
        return LoadedModel(settings.model_name or "m", made, None)

    @property
    def alive(self) -> list[Device]:
        return [device for ref in self.devices if (device := ref()) is not None]

    @property
    def newest(self) -> Device:
        return self.alive[-1]


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def engine(shelf: Shelf) -> Iterator[Engine]:
    settings = EngineSettings(max_batch=16, cache_blocks=8192)
    with Engine("first", settings, load=shelf.load) as engine:
        yield engine
    assert_no_threads()
    assert all(device.started == 0 for device in shelf.alive)


def assert_no_threads() -> None:
    names = {thread.name for thread in threading.enumerate()}
    assert not names & ENGINE_THREADS


def assert_idle(engine: Engine) -> None:
    """Nothing is held: what the last snapshot before the engine's rest says."""
    deadline = time.monotonic() + 10
    while (metrics := engine.get_schedule_metrics()).running + metrics.retiring:
        assert time.monotonic() < deadline, metrics
        time.sleep(0.001)
    assert metrics.waiting == 0
    assert metrics.free_blocks + metrics.cached_blocks == metrics.total_blocks


def echoed(prompt: list[int], tokens: int) -> list[int]:
    return [prompt[i % len(prompt)] for i in range(tokens)]


def test_a_stream_gives_every_token_in_its_place_and_one_end(engine: Engine) -> None:
    outputs = list(engine.create_instance().stream_infer([5, 6, 7], Sampling(50)))

    tokens: list[int] = []
    for output in outputs:
        assert output.first == len(tokens)
        tokens += output.tokens
    assert tokens == echoed([5, 6, 7], 50)
    assert [output.finish for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish is FinishReason.LENGTH
    usage = outputs[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 50)


@pytest.mark.rule("offline.slow-reader")
def test_a_reader_that_comes_late_gets_all_at_once(engine: Engine) -> None:
    stream = engine.start([1, 2], Sampling(300))
    while not stream.ended:
        time.sleep(0.001)

    output = stream.take()

    assert output.tokens == echoed([1, 2], 300)
    assert output.finish is FinishReason.LENGTH


def test_stop_tokens_and_logprobs(engine: Engine) -> None:
    sampling = Sampling(50, stop_token_ids=frozenset({9}), logprobs=2)
    (completion,) = engine.infer([[3, 4]], sampling)

    assert (completion.tokens, completion.finish) == ([3, 4, 9], FinishReason.STOP)
    assert [found.chosen for found in completion.logprobs] == [0.0] * 3
    assert completion.logprobs[0].top == ((3, 0.0), (4, -100.0))


@pytest.mark.parametrize("prompt", [[4, 5], (4, 5), np.array([4, 5]), np.array([4, 5], np.uint8)])
def test_prompts_of_any_integers(engine: Engine, prompt: PromptIds) -> None:
    (completion,) = engine.infer([prompt], Sampling(2))

    assert completion.tokens == [4, 5]


def test_many_prompts_come_back_in_their_order(engine: Engine) -> None:
    prompts = [[i, i + 1, i + 2] for i in range(200)]
    samplings = [Sampling(1 + i % 40) for i in range(200)]

    completions = engine.infer(prompts, samplings)

    for prompt, sampling, completion in zip(prompts, samplings, completions, strict=True):
        assert completion.tokens == echoed(prompt, sampling.max_new_tokens)
    assert_idle(engine)


def test_many_threads_and_an_event_loop_at_once(engine: Engine) -> None:
    found: dict[int, list[int]] = {}

    def read(i: int) -> None:
        instance = engine.create_instance()
        for round_ in range(3):
            outputs = instance.stream_infer([i, i + 1], Sampling(60))
            found[i * 10 + round_] = [t for output in outputs for t in output.tokens]

    async def read_async(i: int) -> None:
        outputs = engine.create_instance().async_stream_infer([i, i + 1], Sampling(60))
        found[i * 10] = [t async for output in outputs for t in output.tokens]

    async def all_async() -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(100, 140):
                group.create_task(read_async(i))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    asyncio.run(all_async())
    for thread in threads:
        thread.join()

    assert len(found) == 20 * 3 + 40
    for name, tokens in found.items():
        assert tokens == echoed([name // 10, name // 10 + 1], 60)
    assert_idle(engine)


# leaving early


@pytest.mark.rule("offline.left-is-gone")
def test_leaving_a_stream_cancels_it_and_leaves_nothing(engine: Engine) -> None:
    for output in engine.create_instance().stream_infer([1, 2, 3], LONG):
        assert output.tokens
        break

    assert_idle(engine)
    assert engine.get_schedule_metrics().finished == {"cancelled": 1}


def test_an_error_in_the_readers_body_cancels_too(engine: Engine) -> None:
    instance = engine.create_instance()
    outputs = instance.stream_infer([1, 2, 3], LONG)
    next(outputs)

    with pytest.raises(KeyError):
        outputs.throw(KeyError("mine"))

    assert_idle(engine)
    assert len(list(instance.stream_infer([1], Sampling(1)))) == 1


async def test_closing_an_async_stream_cancels_it(engine: Engine) -> None:
    async with aclosing(engine.create_instance().async_stream_infer([1, 2], LONG)) as outputs:
        async for output in outputs:
            assert output.tokens
            break

    assert_idle(engine)
    assert engine.get_schedule_metrics().finished == {"cancelled": 1}


@pytest.mark.rule("offline.left-is-gone")
async def test_cancelling_a_task_cancels_its_sequence(engine: Engine) -> None:
    began = asyncio.Event()

    async def read() -> None:
        async for _ in engine.create_instance().async_stream_infer([1, 2], LONG):
            began.set()

    tasks = [asyncio.create_task(read()) for _ in range(30)]  # more than run at once
    await began.wait()
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert_idle(engine)


def test_an_instance_can_be_cancelled_from_another_thread(engine: Engine) -> None:
    instance = engine.create_instance()
    outputs = instance.stream_infer([1, 2], LONG)
    next(outputs)
    threading.Thread(target=instance.cancel).start()

    *_, last = outputs

    assert last.finish is FinishReason.CANCELLED
    instance.cancel()  # nothing runs


def test_an_instance_has_one_stream_at_a_time(engine: Engine) -> None:
    instance = engine.create_instance()
    first = instance.stream_infer([1], LONG)
    next(first)

    with pytest.raises(RuntimeError, match="make another one"):
        next(instance.stream_infer([2], LONG))

    first.close()
    assert_idle(engine)


# refusals


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "no tokens"),
        ([1, VOCABULARY], "token 1000 at position 1"),
        ([-1], "token -1 at position 0"),
        ([1, 1 << 40], f"token {1 << 40} at position 1"),
        ([1.5], "float64"),
        ([True], "bool"),
        (["a"], "integers"),
        ([[1, 2]], "not a list of tokens"),
        ([[1], [1, 2]], "not a list of tokens"),
        (7, "not a list of tokens"),
    ],
)
def test_a_prompt_that_is_none_is_refused(engine: Engine, prompt: Any, words: str) -> None:
    with pytest.raises(RequestRejected, match=words) as caught:
        engine.start(prompt, Sampling(1))
    assert caught.value.code is Code.INVALID_REQUEST
    assert engine.get_schedule_metrics().finished == {}


def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(engine: Engine) -> None:
    limit = engine.context_tokens
    with pytest.raises(PromptTooLong, match=str(limit)) as caught:
        next(engine.create_instance().stream_infer([1] * limit, Sampling(1)))

    assert caught.value.code is Code.CONTEXT_LENGTH_EXCEEDED
    assert (caught.value.prompt_tokens, caught.value.limit_tokens) == (limit, limit)


def test_sampling_that_makes_no_sense_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="temperature is -1"):
        engine.infer([[1]], Sampling(1, temperature=-1))


def test_one_bad_prompt_stops_the_others_and_is_named(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match="no tokens") as caught:
        engine.infer([[1], [2], []], LONG)

    assert caught.value.__notes__ == ["prompt 2"]
    assert_idle(engine)


def test_as_many_samplings_as_prompts(engine: Engine) -> None:
    with pytest.raises(ValueError, match="2 prompts came with 1"):
        engine.infer([[1], [2]], [Sampling(1)])


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingsError, match="batch_tokens"):
        Engine(settings=EngineSettings(executor="echo", batch_tokens=8))


def test_a_row_that_is_not_finite_fails_alone(engine: Engine, shelf: Shelf) -> None:
    shelf.newest.not_finite = True
    with pytest.raises(RequestFailed) as caught:
        engine.infer([[1, 2]], Sampling(5))
    assert caught.value.code is Code.NUMERIC_FAILURE

    shelf.newest.not_finite = False
    assert engine.infer([[1, 2]], Sampling(2))[0].tokens == [1, 2]


def test_a_device_that_breaks_is_told_to_all_and_from_then_on(engine: Engine, shelf: Shelf) -> None:
    streams = [engine.start([i], LONG) for i in range(30)]
    shelf.newest.broken = True

    for stream in streams:
        with pytest.raises(EngineFailed, match="the device broke"):
            list(stream)
    with pytest.raises((EngineFailed, RequestDropped)):
        engine.start([1], Sampling(1))
    for call in (engine.sleep, engine.sleep, lambda: engine.update_params("second")):
        with pytest.raises(EngineFailed, match="the device broke"):
            call()
    with pytest.raises(EngineFailed, match="the device broke"):
        engine.start([1], Sampling(1))


# closing


@pytest.mark.rule("request.one-terminal-status")
def test_closing_gives_everything_an_end(shelf: Shelf) -> None:
    engine = Engine("first", EngineSettings(max_batch=2), load=shelf.load)
    streams = [engine.start([1, 2], LONG) for _ in range(40)]
    streams[0].take()

    engine.close()

    for stream in streams:
        with pytest.raises(EngineDraining):
            list(stream)
    assert_no_threads()
    assert not [device for device in shelf.alive if device.started]
    engine.close()
    for refused in (
        lambda: engine.start([1], Sampling(1)),
        engine.sleep,
        engine.wakeup,
        lambda: engine.update_params("second"),
    ):
        with pytest.raises(EngineDraining, match="closed"):
            refused()


def test_closing_ends_the_stream_of_another_thread(shelf: Shelf) -> None:
    engine = Engine("first", EngineSettings(), load=shelf.load)
    began = threading.Event()
    ends: list[BaseException] = []

    def read() -> None:
        try:
            for _ in engine.create_instance().stream_infer([1, 2], LONG):
                began.set()
        except EngineDraining as end:
            ends.append(end)

    reader = threading.Thread(target=read)
    reader.start()
    began.wait(10)
    engine.close()
    reader.join(10)

    assert len(ends) == 1


def test_closing_ends_a_sleep_that_waits_for_a_long_answer(engine: Engine) -> None:
    stream = engine.start([1], LONG)
    stream.take()
    falling = threading.Thread(target=engine.sleep)
    falling.start()
    refused = False
    while not refused:
        try:
            engine.start([1], Sampling(1)).close()
        except EngineAsleep:
            refused = True

    engine.close()
    falling.join(10)

    assert not falling.is_alive()
    with pytest.raises(EngineDraining):
        list(stream)


# sleeping


def complete(engine: Engine, length: int = 64) -> Completion:
    prompt = list(range(1, length + 1))
    (completion,) = engine.infer([prompt], Sampling(8))
    assert completion.tokens == echoed(prompt, 8)
    return completion


@pytest.mark.rule("offline.asleep-holds-nothing")
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_refuses_work_and_wakes_with_an_empty_cache(
    engine: Engine, shelf: Shelf, level: int
) -> None:
    complete(engine)
    assert complete(engine).usage.cached_tokens > 0

    engine.sleep(level)

    assert_no_threads()
    gc.collect()
    assert [device.started for device in shelf.alive] == ([0] if level == 1 else [])
    with pytest.raises(EngineAsleep, match=f"level {level}"):
        engine.start([1], Sampling(1))
    assert engine.get_schedule_metrics().total_blocks == 0

    engine.wakeup()

    assert len(shelf.devices) == level
    assert complete(engine).usage.cached_tokens == 0
    assert complete(engine).usage.cached_tokens > 0


@pytest.mark.parametrize("then", ["wake", "close"])
def test_a_sleep_that_is_interrupted_leaves_no_second_core(
    engine: Engine, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    def interrupted(_thread: threading.Thread, _timeout: float | None = None) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    stream = engine.start([1], Sampling(200))
    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.sleep()
    with pytest.raises(EngineAsleep):
        engine.start([1], Sampling(1))

    if then == "close":
        engine.close()
        return
    engine.wakeup()

    assert stream.take().finish is FinishReason.LENGTH
    assert [device.started for device in shelf.alive] == [1]
    complete(engine)


def test_a_forked_process_is_told_and_ends_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: here + 1)
        for use in (engine.sleep, engine.wakeup, lambda: engine.start([1], Sampling(1))):
            with pytest.raises(EngineFailed, match=f"runs in process {here}"):
                use()
        engine.close()
    complete(engine)


def test_sleeping_waits_for_what_runs(engine: Engine) -> None:
    streams = [engine.start([1, 2], Sampling(100)) for _ in range(40)]

    engine.sleep()

    for stream in streams:
        assert stream.take().tokens == echoed([1, 2], 100)


def test_weights_can_wake_before_the_cache(engine: Engine, shelf: Shelf) -> None:
    engine.sleep()
    engine.sleep(2)  # deeper
    with pytest.raises(EngineAsleep, match="wake them with the cache"):
        engine.wakeup(["kv_cache"])

    engine.wakeup(["weights"])
    assert [device.started for device in shelf.alive] == [0]
    with pytest.raises(EngineAsleep):
        engine.start([1], Sampling(1))

    engine.wakeup(["kv_cache"])
    complete(engine)
    engine.wakeup()  # is awake: nothing changes
    assert len(shelf.devices) == 2


def test_weights_that_have_gone_leave_it_asleep(engine: Engine, shelf: Shelf) -> None:
    engine.sleep(2)
    shelf.gone = True
    with pytest.raises(ModelRejected, match="first: no such file"):
        engine.wakeup()
    with pytest.raises(EngineAsleep):
        engine.start([1], Sampling(1))

    shelf.gone = False
    engine.wakeup()
    complete(engine)


def test_levels_and_tags_that_do_not_exist(engine: Engine) -> None:
    with pytest.raises(ValueError, match="level is 3"):
        engine.sleep(3)
    with pytest.raises(ValueError, match="lora"):
        engine.wakeup(["lora"])  # pyright: ignore[reportArgumentType]


# new weights


def test_new_weights_begin_with_an_empty_cache(engine: Engine, shelf: Shelf) -> None:
    complete(engine)
    running = engine.start([1, 2], Sampling(200))

    assert engine.update_params("second") == "second"

    assert running.take().tokens == echoed([1, 2], 200)
    assert engine.shape.weights_version == "second"
    assert engine.name == "m"
    assert complete(engine).usage.cached_tokens == 0
    gc.collect()
    assert len(shelf.alive) == 1


def test_weights_of_another_kind_are_refused_and_the_old_ones_serve(
    engine: Engine, shelf: Shelf
) -> None:
    complete(engine)
    with pytest.raises(ModelRejected, match="wider: vocabulary is 1001; the engine runs 1000"):
        engine.update_params("wider")
    shelf.gone = True
    with pytest.raises(ModelRejected, match="second: no such file"):
        engine.update_params("second")

    assert engine.shape.weights_version == "first"
    assert complete(engine).usage.cached_tokens > 0


def test_old_weights_are_gone_when_the_new_cache_is_sized(
    engine: Engine, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(engine)
    held: list[int] = []

    def block_bytes(device: Device, block_tokens: int) -> int:
        held.append(len(shelf.alive))
        return EchoExecutor.block_bytes(device, block_tokens)

    monkeypatch.setattr(Device, "block_bytes", block_bytes, raising=False)

    engine.update_params("second")

    assert set(held) == {1}


def test_new_weights_that_cannot_start_are_told_of_and_wake_later(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(device: Device, block_tokens: int) -> int:
        raise ModelRejected("no memory is left")

    with monkeypatch.context() as patch:
        patch.setattr(Device, "block_bytes", refuses, raising=False)
        with pytest.raises(ModelRejected, match="no memory is left"):
            engine.update_params("second")
        with pytest.raises(EngineAsleep, match=r"could not start \(no memory is left\)"):
            engine.start([1], Sampling(1))

    engine.wakeup()
    assert engine.shape.weights_version == "second"
    complete(engine)


def test_what_wakes_is_of_the_kind_that_slept(engine: Engine) -> None:
    engine.sleep(2)
    engine.update_params("wider")
    with pytest.raises(ModelRejected, match="wider: vocabulary is 1001; the engine runs 1000"):
        engine.wakeup()
    engine.update_params("second")
    engine.wakeup()
    complete(engine)


def test_sleeping_weights_are_replaced_at_wake(engine: Engine) -> None:
    engine.sleep(2)

    assert engine.update_params("second") == "first"

    engine.wakeup()
    assert engine.shape.weights_version == "second"
    complete(engine)


def test_weights_change_under_a_light_sleep(engine: Engine) -> None:
    engine.sleep(1)

    assert engine.update_params("second") == "second"

    with pytest.raises(EngineAsleep, match="level 1"):
        engine.start([1], Sampling(1))
    engine.wakeup()
    complete(engine)


def test_outputs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Output(0, [1]).first = 1  # pyright: ignore[reportAttributeAccessIssue]
