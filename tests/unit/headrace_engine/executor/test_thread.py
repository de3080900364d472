"""ExecutorThread: in order, on one thread, and an error is a batch's, never a dead thread."""

from __future__ import annotations

import threading

import pytest
from headrace_engine.executor.base import ExecutorLimits, ModelShape
from headrace_engine.executor.echo import EchoExecutor
from headrace_engine.executor.thread import ExecutorThread
from headrace_engine.state.batch import BatchData
from support.batch import decode_batch, limits


class Recorder(EchoExecutor):
    """Says what is called, and on which thread; breaks where it is told to."""

    def __init__(self, break_at: str = "", break_pass: int = 0) -> None:
        super().__init__(100)
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self._break_at = break_at
        self._break_pass = break_pass

    def _note(self, call: str, pass_id: int) -> None:
        self.calls.append(f"{call} {pass_id}")
        self.threads.add(threading.get_ident())
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
def test_batches_come_back_in_order_from_one_other_thread(phases: int) -> None:
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
    assert threading.get_ident() not in executor.threads
    for call in ("submit", "collect"):
        assert [c for c in executor.calls if c.startswith(call)] == [
            f"{call} {i}" for i in range(1, 20)
        ]
    assert executor.calls[-1] == "close 0"


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
