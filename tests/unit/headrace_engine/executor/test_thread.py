"""ExecutorThread: in order, never dry, and an error is a batch's, never a dead thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from headrace_engine.executor import thread
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.intake.gateway import EngineGateway
from headrace_engine.loop.thread import EngineLoop, executor_limits
from headrace_engine.state.batch import BatchData
from headrace_engine.state.request import Request, RequestHandle, Sampling
from headrace_kit.clock import SystemClock
from support.batch import decode_batch, limits
from support.engine import small_settings


class Recorder(EchoExecutor):
    """Says what is called, and on which thread; breaks where it is told to."""

    def __init__(self, break_at: str = "", break_pass: int = 0) -> None:
        super().__init__(100)
        self.calls: list[str] = []
        self.threads: set[int] = set()
        """That did anything but collect."""
        self.collectors: set[int] = set()
        self._break_at = break_at
        self._break_pass = break_pass

    def _note(self, call: str, pass_id: int) -> None:
        self.calls.append(f"{call} {pass_id}")
        (self.collectors if call == "collect" else self.threads).add(threading.get_ident())
        if call == self._break_at and pass_id == self._break_pass:
            raise RuntimeError(f"{call} broke")

    def start(self, limits: ExecutorLimits) -> None:
        self._note("start", 0)

    def submit(self, batch: BatchData) -> None:
        self._note("submit", batch.pass_id)

    def collect(self, batch: BatchData) -> None:
        self._note("collect", batch.pass_id)
        super().collect(batch)

    def close(self) -> None:
        self._note("close", 0)


@pytest.mark.rule("executor.in-order")
@pytest.mark.rule("batch.one-holder")
@pytest.mark.parametrize("phases", [1, 2])
def test_batches_come_back_in_order_from_other_threads(phases: int) -> None:
    executor = Recorder()
    runner = ExecutorThread(executor, limits(phases=phases))
    runner.start()
    inside: list[BatchData] = []
    for pass_id in range(1, 20):
        batch = decode_batch(pass_id, first=pass_id == 1)
        runner.submit(batch)
        inside.append(batch)
        if len(inside) == phases:
            assert runner.take(5) is inside.pop(0)
    while inside:
        batch = runner.take(5)
        assert batch is not None
        assert batch is inside.pop(0)
        assert batch.output is not None
        assert batch.error is None
    runner.close()
    assert len(executor.threads) == 1
    assert len(executor.collectors) == 1
    assert (executor.threads == executor.collectors) == (phases == 1)
    assert threading.get_ident() not in executor.threads | executor.collectors
    for call in ("submit", "collect"):
        assert [c for c in executor.calls if c.startswith(call)] == [
            f"{call} {i}" for i in range(1, 20)
        ]
    assert executor.calls[-1] == "close 0"


class Device(Recorder):
    """Runs beside the host: a batch is done when the test says so, or the next one is queued."""

    def __init__(self, passes: int = 0) -> None:
        """Runs dry after ``passes`` batches, and then only. 0: each batch waits for ``finish``."""
        super().__init__()
        self._passes = passes
        self.finish = threading.Semaphore(0)
        self.queued = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)
        """Released when a ``collect`` begins."""
        self.dry: list[int] = []
        """Passes at whose end nothing was queued."""

    def submit(self, batch: BatchData) -> None:
        super().submit(batch)
        self.queued.release()

    def collect(self, batch: BatchData) -> None:
        self.waiting.release()
        if not self._passes:
            assert self.finish.acquire(timeout=60)
        elif batch.pass_id < self._passes and not self.dry:
            if batch.pass_id == 1:
                self.queued.acquire()
            if not self.queued.acquire(timeout=60):
                self.dry.append(batch.pass_id)
        super().collect(batch)


@pytest.mark.rule("executor.never-dry")
def test_a_batch_is_submitted_while_an_earlier_one_is_awaited() -> None:
    device = Device()
    runner = ExecutorThread(device, limits(phases=2))
    runner.start()
    first, second = decode_batch(1, first=True), decode_batch(2)
    runner.submit(first)
    assert device.queued.acquire(timeout=60)
    assert device.waiting.acquire(timeout=60)
    runner.submit(second)
    assert device.queued.acquire(timeout=60), "the device would have run dry"
    assert device.calls == ["start 0", "submit 1", "submit 2"]
    assert runner.take(0) is None
    device.finish.release()
    assert runner.take(10) is first
    device.finish.release()
    assert runner.take(10) is second
    runner.close()


@pytest.mark.rule("executor.never-dry")
def test_the_device_always_finds_the_next_batch_queued() -> None:
    passes = 40
    settings = small_settings(phases=2, session_tokens=64, audit=False)
    device = Device(passes)
    runner = ExecutorThread(device, executor_limits(settings, device.block_bytes(4)))
    runner.start()
    door = EngineGateway()
    loop = EngineLoop(door, runner, settings, SystemClock(), device.shape)
    door.push(
        Request(
            id="r",
            handle=RequestHandle(1),
            prompt=np.array([1, 2, 3], np.int32),
            sampling=Sampling(max_new_tokens=passes),
        )
    )
    door.drain()
    loop.run()
    runner.close()
    assert device.calls.count(f"collect {passes}") == 1
    assert device.dry == []


@pytest.mark.rule("executor.first-error-stays")
class Slow(Recorder):
    """Each ``submit`` lasts until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self.launch = threading.Semaphore(0)

    def submit(self, batch: BatchData) -> None:
        self.entered.release()
        assert self.launch.acquire(timeout=60)
        super().submit(batch)


@pytest.mark.rule("executor.launch-first")
def test_the_first_batch_of_an_idle_device_is_waited_for_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread, "LAUNCH_S", 60)
    device = Slow()
    runner = ExecutorThread(device, limits(phases=2))
    runner.start()
    for pass_id in (1, 3):  # idle at first, and again once everything was taken
        first, second = decode_batch(pass_id, first=pass_id == 1), decode_batch(pass_id + 1)
        bringing = threading.Thread(target=runner.submit, args=(first,))
        bringing.start()
        assert device.entered.acquire(timeout=60)
        bringing.join(0.05)
        assert bringing.is_alive(), "the device does not have it yet"
        device.launch.release()
        bringing.join(60)
        assert device.calls[-1] in (f"submit {pass_id}", f"collect {pass_id}")
        runner.submit(second)  # would wait for the device for a minute
        device.launch.release()
        for batch in (first, second):
            assert runner.take(60) is batch
            assert batch.error is None
    runner.close()


@pytest.mark.rule("executor.launch-first")
@pytest.mark.parametrize(("phases", "launch_s"), [(2, 0.001), (1, 60)])
def test_a_device_without_a_queue_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, phases: int, launch_s: float
) -> None:
    monkeypatch.setattr(thread, "LAUNCH_S", launch_s)
    device = Slow()
    runner = ExecutorThread(device, limits(phases=phases))
    runner.start()
    batch = decode_batch(1, first=True)
    runner.submit(batch)  # comes back, though nobody has said that the device may take it
    device.launch.release()
    assert runner.take(60) is batch
    assert batch.error is None
    runner.close()


def test_what_was_submitted_before_a_failed_submit_is_still_collected() -> None:
    class Breaks(Device):
        def submit(self, batch: BatchData) -> None:
            super().submit(batch)
            if batch.pass_id == 2:
                raise RuntimeError("submit broke")

    device = Breaks()
    runner = ExecutorThread(device, limits(phases=2))
    runner.start()
    runner.submit(decode_batch(1, first=True))
    assert device.waiting.acquire(timeout=60)
    runner.submit(decode_batch(2))
    device.finish.release()
    first, second = runner.take(10), runner.take(10)
    assert first is not None
    assert second is not None
    assert (first.error, str(second.error)) == (None, "submit broke")
    runner.close()


@pytest.mark.rule("executor.first-error-stays")
@pytest.mark.parametrize("where", ["submit", "collect"])
def test_after_an_error_every_later_batch_fails_with_it(where: str) -> None:
    executor = Recorder(where, 2)
    runner = ExecutorThread(executor, limits(phases=2))
    runner.start()
    for pass_id in (1, 2, 3):
        runner.submit(decode_batch(pass_id, first=pass_id == 1))
        if pass_id > 1:
            batch = runner.take(5)
            assert batch is not None
            assert (batch.pass_id, batch.error is None) == (pass_id - 1, pass_id - 1 == 1)
    batch = runner.take(5)
    assert batch is not None
    assert str(batch.error) == f"{where} broke"
    runner.close()
    assert executor.calls[-1] == "close 0"
    assert f"collect {3}" not in executor.calls


def test_an_executor_that_cannot_start_says_why_and_is_closed() -> None:
    executor = Recorder("start")
    runner = ExecutorThread(executor, limits())
    with pytest.raises(RuntimeError, match="start broke"):
        runner.start()
    assert executor.calls == ["start 0", "close 0"]
    runner.close()


def test_an_executor_that_can_neither_start_nor_close_says_why_it_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Recorder("start")

    def broken() -> None:
        raise OSError("close broke")

    monkeypatch.setattr(executor, "close", broken)
    with pytest.raises(RuntimeError, match="start broke"):
        ExecutorThread(executor, limits()).start()


def test_an_executor_that_broke_and_cannot_be_closed_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = Recorder("submit", 1)

    def broken() -> None:
        raise OSError("close broke")

    monkeypatch.setattr(executor, "close", broken)
    runner = ExecutorThread(executor, limits())
    runner.start()
    runner.submit(decode_batch(1, first=True))
    runner.close()
    batch = runner.take(0)
    assert batch is not None
    assert str(batch.error) == "submit broke"
    assert runner.take(60) is None  # at once, as nothing comes any more


def test_closing_runs_what_was_submitted_and_can_be_repeated() -> None:
    runner = ExecutorThread(Recorder(), limits())
    runner.start()
    runner.submit(decode_batch(1, first=True))
    runner.close()
    runner.close()
    batch = runner.take(0)
    assert batch is not None
    assert batch.output is not None
    assert runner.take(1) is None


def test_take_gives_up_when_the_time_is_over() -> None:
    runner = ExecutorThread(Recorder(), limits())
    runner.start()
    assert runner.take(0.001) is None
    runner.close()


def test_the_shape_can_be_asked_from_anywhere() -> None:
    assert isinstance(Recorder().shape, ModelShape)
