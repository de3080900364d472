"""ExecutorThread: runs an Executor beside the engine thread, batches in order.

Owner    whoever started it owns the handle; the executor belongs to the threads inside
Writes   ``BatchData.error``, through the executor ``BatchData.output``
Never    looks at sequences; reorders batches; lets a wait for one batch hold up the next
Rules    executor.in-order, executor.never-dry, executor.launch-first, executor.first-error-stays
Next     headrace_engine.model.decoder
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final

from headrace_kit.log import get_logger

from headrace_engine.executor.base import Executor, ExecutorLimits
from headrace_engine.state.batch import BatchData
from headrace_engine.state.mailbox import Mailbox, Monitor, NewestCell

log = get_logger(__name__)

LAUNCH_S: Final = 0.02
"""Longer than handing a batch to a device takes. A device without a queue runs the batch meanwhile; what
comes after it is planned from then on."""


class ExecutorThread:
    """One thread submits; with two phases a second one collects. Mailboxes stand between them.

    ``submit`` gives a batch away; ``take`` brings back the oldest, run or failed. At most
    ``limits.phases`` batches are inside at once, which the caller sees to.

    A wait for batch N must not keep N+1 from the device, which would else stand still between
    the two; so whoever waits does not submit. With one phase there is no N+1 to hold up, and one
    thread does both.
    """

    def __init__(self, executor: Executor, limits: ExecutorLimits) -> None:
        self._executor = executor
        self.limits = limits
        self._todo: Mailbox[BatchData] = Mailbox()
        self._submitted: Mailbox[tuple[BatchData, BaseException | None]] = Mailbox()
        self._done: Mailbox[BatchData] = Mailbox()
        self._started: Mailbox[BaseException | None] = Mailbox()
        self._given = self._taken = 0
        """Batches that came by ``submit`` and went by ``take``. The caller's."""
        self._launched = 0
        """Batches that the device was given. Written by the executor thread."""
        self._launching = Monitor()
        self._first_error: NewestCell[BaseException | None] = NewestCell(None)
        """Of the oldest batch that failed. Written by whoever collects."""
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)
        self._collector = threading.Thread(target=self._collect_all, name="collector", daemon=True)

    def start(self) -> None:
        """Starts thread and executor; raises what the executor's ``start`` raised."""
        self._thread.start()
        error = self._started.take()
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, batch: BatchData) -> None:
        """Gives a batch to the executor. It must not be touched until ``take`` returns it.

        The first batch of an idle device is waited for until the device has it, ``LAUNCH_S`` at most.
        """
        self._todo.put(batch)
        self._given += 1
        if self._given - self._taken == 1 < self.limits.phases:
            with self._launching as launching:
                launching.wait(lambda: self._launched >= self._given, LAUNCH_S)

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        """The oldest submitted batch, with ``output`` or ``error`` set. None when time is over."""
        batch = self._done.take(timeout_s)
        self._taken += batch is not None
        return batch

    def close(self) -> None:
        """Runs what was submitted, frees the device, ends the thread. Safe to repeat."""
        self._todo.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """The submitting thread's top frame: an exception becomes a batch's error, no dead thread."""
        try:
            self._executor.start(self.limits)
        except Exception as error:
            # A device that broke may not let itself be closed either: the first error is told.
            with contextlib.suppress(Exception):
                self._executor.close()
            self._started.put(error)
            return
        self._started.put(None)
        try:
            if self.limits.phases == 1:
                self._submit_all(self._collect)
            else:
                self._collector.start()
                self._submit_all(self._pass_on)
        finally:
            self._submitted.close()
            if self._collector.ident is not None:
                self._collector.join()
            try:
                self._executor.close()
            except Exception:
                # As above, after an error that was told as a batch's.
                log.warning("executor.not_closed", exc_info=True)
            self._done.close()

    def _submit_all(self, then: Callable[[BatchData, BaseException | None], None]) -> None:
        error: BaseException | None = None
        while (batch := self._todo.take()) is not None:
            # What was submitted before an error may still be collected; nothing follows it.
            error = self._first_error.get() or error or self._try(self._executor.submit, batch)
            then(batch, error)

    def _pass_on(self, batch: BatchData, error: BaseException | None) -> None:
        self._submitted.put((batch, error))
        with self._launching as launching:
            self._launched += 1
            launching.wake()

    def _collect_all(self) -> None:
        while (submitted := self._submitted.take()) is not None:
            self._collect(*submitted)

    def _collect(self, batch: BatchData, error: BaseException | None) -> None:
        """Waits for a batch, and hands it out. ``error``: it was not submitted."""
        error = self._first_error.get() or error or self._try(self._executor.collect, batch)
        if error is not None:
            self._first_error.put(error)
        batch.error = error
        self._done.put(batch)

    @staticmethod
    def _try(call: Callable[[BatchData], None], batch: BatchData) -> BaseException | None:
        # One of the two places where any exception is caught: it ends the batch, and the engine.
        try:
            call(batch)
        except Exception as error:
            return error
        return None
