"""ExecutorThread: runs an Executor on a thread of its own, batches in order.

Owner    whoever started it owns the handle; the executor belongs to the thread inside
Writes   ``BatchData.error``, through the executor ``BatchData.output``
Never    looks at sequences; reorders batches
Rules    executor.in-order, executor.first-error-stays, batch.one-holder
Next     headrace_engine.model.decoder
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from headrace_engine.executor.base import Executor, ExecutorLimits
from headrace_engine.state.batch import BatchData
from headrace_engine.state.mailbox import Mailbox


class ExecutorThread:
    """Two mailboxes and a thread between them.

    ``submit`` gives a batch away; ``take`` brings back the oldest, run or failed. At most
    ``limits.phases`` batches are inside at once, which the caller sees to.
    """

    def __init__(self, executor: Executor, limits: ExecutorLimits) -> None:
        self._executor = executor
        self.limits = limits
        self._todo: Mailbox[BatchData] = Mailbox()
        self._done: Mailbox[BatchData] = Mailbox()
        self._started: Mailbox[BaseException | None] = Mailbox()
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    def start(self) -> None:
        """Starts thread and executor; raises what the executor's ``start`` raised."""
        self._thread.start()
        error = self._started.take()
        if error is not None:
            self._thread.join()
            raise error

    def submit(self, batch: BatchData) -> None:
        """Gives a batch to the executor. It must not be touched until ``take`` returns it."""
        self._todo.put(batch)

    def take(self, timeout_s: float | None = None) -> BatchData | None:
        """The oldest submitted batch, with ``output`` or ``error`` set. None when time is over."""
        return self._done.take(timeout_s)

    def close(self) -> None:
        """Runs what was submitted, frees the device, ends the thread. Safe to repeat."""
        self._todo.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        """The thread's top frame: an exception becomes the error of a batch, never a dead thread."""
        try:
            self._executor.start(self.limits)
        except Exception as error:
            self._executor.close()
            self._started.put(error)
            return
        self._started.put(None)
        try:
            self._serve()
        finally:
            self._executor.close()
            self._done.close()

    def _serve(self) -> None:
        running: deque[tuple[BatchData, BaseException | None]] = deque()
        not_submitted: BaseException | None = None
        not_collected: BaseException | None = None
        while True:
            batch = self._todo.take(0 if running else None)
            if batch is None and not running:
                return
            if batch is not None:
                # What was submitted before an error may still be collected; nothing follows it.
                not_submitted = (
                    not_collected or not_submitted or self._try(self._executor.submit, batch)
                )
                running.append((batch, not_submitted))
            if batch is None or len(running) == self.limits.phases:
                oldest, error = running.popleft()
                error = error or not_collected or self._try(self._executor.collect, oldest)
                not_collected = error
                oldest.error = error
                self._done.put(oldest)

    @staticmethod
    def _try(call: Callable[[BatchData], None], batch: BatchData) -> BaseException | None:
        # One of the two places where any exception is caught: it ends the batch, and the engine.
        try:
            call(batch)
        except Exception as error:
            return error
        return None
