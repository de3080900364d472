"""A running core: what breaks in its threads is told to whoever waits and whoever comes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from headrace_engine.api_running import RunningCore
from headrace_engine.core import build_core
from headrace_engine.errors import EngineDraining, EngineFailed
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.loading import LoadedModel
from headrace_engine.settings import EngineSettings
from headrace_engine.state.batch import BatchData
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock


def running(executor: EchoExecutor) -> RunningCore:
    settings = EngineSettings(cache_blocks=64)
    return RunningCore(build_core(settings, LoadedModel("m", executor, None), SystemClock()))


def request(handle: RequestHandle, tokens: int = 4) -> Request:
    return Request("r", handle, np.array([1, 2, 3], np.int32), Sampling(tokens))


class Breaking(EchoExecutor):
    """Breaks at the first batch."""

    def collect(self, batch: BatchData) -> None:
        raise RuntimeError("the device broke")


def test_a_device_that_breaks_fails_those_who_wait_and_those_who_come() -> None:
    core = running(Breaking(100))
    stream = core.push(request)

    with pytest.raises(EngineFailed, match="the device broke"):
        stream.take()
    while core.failure is None:  # readers are told a moment before
        time.sleep(0.001)
    with pytest.raises(EngineFailed, match="the device broke"):
        core.push(request)
    core.stop(finish=False)
    assert len(core.streams) == 0


def test_a_signal_thread_that_breaks_fails_those_who_wait() -> None:
    core = running(EchoExecutor(100, step_s=0.01))
    stream = core.push(lambda handle: request(handle, 500))
    stream.take()
    broken = PassOutputs(
        pass_id=0,
        handles=np.array([10**6], np.int64),
        choices=np.zeros(1, np.int32),
        firsts=np.zeros(1, np.int32),
        counts=np.ones(1, np.int32),
        tokens=np.ones(1, np.int32),
    )

    core.core.door.notify(broken)

    with pytest.raises(EngineFailed, match="the signal thread broke"):
        list(stream)
    with pytest.raises(EngineFailed, match="the signal thread broke"):
        core.push(request)
    core.stop(finish=False)


def test_stopping_finishes_what_runs_or_gives_it_its_end() -> None:
    core = running(EchoExecutor(100, step_s=0.001))
    stream = core.push(lambda handle: request(handle, 20))
    core.stop(finish=True)
    assert len(stream.take().tokens) == 20

    core = running(EchoExecutor(100, step_s=0.001))
    stream = core.push(lambda handle: request(handle, 900))
    core.stop(finish=False)
    with pytest.raises(EngineDraining):
        list(stream)
    with pytest.raises(EngineDraining):
        core.push(lambda handle: replace(request(handle), id="late"))
    assert len(core.streams) == 0
