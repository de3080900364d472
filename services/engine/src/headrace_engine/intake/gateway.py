"""EngineGateway: the engine's door.

Owner    shared; its mailboxes are the only synchronisation
Writes   mailboxes
Never    blocks a pusher; runs a callback on the engine thread
Rules    request.one-terminal-status, gateway.pop-budget
Next     headrace_engine.loop.thread
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from headrace_contracts.codes import Code, FinishReason
from headrace_kit.clock import Clock, SystemClock

from headrace_engine.errors import EngineDraining
from headrace_engine.state.inbound import Cancel, Inbound
from headrace_engine.state.mailbox import Mailbox, Monitor
from headrace_engine.state.outputs import PassOutputs, RowEnd, SequenceUsage
from headrace_engine.state.request import Request, RequestHandle

_CODES = {FinishReason.CANCELLED: Code.CANCELLED, FinishReason.DEADLINE: Code.DEADLINE_EXCEEDED}


class OutputSink(Protocol):
    """Where outputs go: to a mailbox of this process, or out of it."""

    def put(self, item: PassOutputs) -> None:
        """Gives outputs away; never waits. Any thread."""
        ...

    def close(self) -> None:
        """Nothing follows."""
        ...


class EngineGateway:
    """The engine's door.

    A request is *queued* until a pop takes it, then the engine's. A cancel of a whole queued
    request is answered here, by the canceller's thread; every other cancel travels with the pop.
    """

    def __init__(self, clock: Clock | None = None, outputs: OutputSink | None = None) -> None:
        """``clock`` is the engine's: it dates the arrival of requests. With ``outputs``, what is
        told goes there, and ``take_outputs`` has nothing to take.
        """
        self._clock = clock or SystemClock()
        self._monitor = Monitor()
        self._queue: dict[RequestHandle, tuple[Request, float]] = {}
        """In order of arrival, with the time of it. A dict, so that cancelling is O(1)."""
        self._cancels: list[Cancel] = []
        self._early: dict[RequestHandle, list[Cancel]] = {}
        """Cancels of single choices of queued requests."""
        self._draining = False
        self._aborting = False
        self._told = False
        """Whether a pop has said that the door is draining or aborting."""
        self._mailbox: Mailbox[PassOutputs] = Mailbox()
        self._outputs: OutputSink = self._mailbox if outputs is None else outputs

    # any thread

    def push(self, request: Request) -> None:
        """Hands a request over; raises ``EngineDraining`` once drained or closed."""
        with self._monitor as monitor:
            if self._draining:
                raise EngineDraining("the engine takes no more requests")
            assert request.handle not in self._queue, "a handle was used twice"
            self._queue[request.handle] = (request, self._clock.monotonic())
            monitor.wake()

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request in whatever state; a no-op for one that has ended or is unknown."""
        with self._monitor as monitor:
            if cancel.handle not in self._queue:
                self._cancels.append(cancel)
                monitor.wake()
                return
            if cancel.choice is not None:
                self._early.setdefault(cancel.handle, []).append(cancel)
                return
            request, pushed_s = self._queue.pop(cancel.handle)
            self._early.pop(cancel.handle, None)
            code = _CODES.get(cancel.reason)
            self._answer(request, cancel.reason, code, "", pushed_s)

    def drain(self) -> None:
        """Refuses new requests; the engine finishes what it has, and then leaves its loop."""
        with self._monitor as monitor:
            self._draining = True
            monitor.wake()

    def close(self) -> None:
        """Abort: what is queued or running ends as CANCELLED with code DRAINING."""
        with self._monitor as monitor:
            self._draining = self._aborting = True
            monitor.wake()

    @property
    def queued(self) -> int:
        """Requests that no pop has taken."""
        return len(self._queue)

    # engine thread

    def pop(self, budget: int, *, block: bool, timeout_s: float | None = None) -> Inbound:
        """At most ``budget`` requests and every cancel; waits for something if ``block``.

        After ``close`` the budget is not looked at: everything queued comes, to be ended.
        """
        with self._monitor as monitor:
            if block:
                monitor.wait(self._has_news, timeout_s)
            inbound = Inbound(drain=self._draining, abort=self._aborting)
            self._told = self._draining
            inbound.cancels, self._cancels = self._cancels, []
            while self._queue and (budget > 0 or self._aborting):
                handle = next(iter(self._queue))
                request, inbound.pushed_s[handle] = self._queue.pop(handle)
                budget -= 1
                inbound.requests.append(request)
                inbound.cancels += self._early.pop(handle, ())
            return inbound

    def notify(self, outputs: PassOutputs) -> None:
        """Gives outputs to the signal thread."""
        self._outputs.put(outputs)

    def finish(self, code: Code, message: str) -> None:
        """The engine thread has left its loop: what is still queued ends so, and nothing follows."""
        with self._monitor:
            self._draining = True
            for request, pushed_s in self._queue.values():
                self._answer(request, FinishReason.ERROR, code, message, pushed_s)
            self._queue.clear()
            self._outputs.close()

    # signal thread

    def take_outputs(self, timeout_s: float) -> list[PassOutputs] | None:
        """Everything notified since the last call; None once finished and empty."""
        return self._mailbox.take_all(timeout_s)

    def _has_news(self) -> bool:
        return bool(self._queue or self._cancels) or (self._draining and not self._told)

    def _answer(
        self,
        request: Request,
        reason: FinishReason,
        code: Code | None,
        message: str,
        pushed_s: float,
    ) -> None:
        """The terminal status of a request that the engine never saw."""
        choices = [c for c in range(request.n) if c not in request.finished]
        delivered = [len(request.generated[c]) if request.generated else 0 for c in choices]
        waited_s = self._clock.monotonic() - pushed_s
        prompt = len(request.prompt)
        self._outputs.put(
            PassOutputs(
                pass_id=0,
                handles=np.full(len(choices), request.handle, np.int64),
                choices=np.array(choices, np.int32),
                firsts=np.array(delivered, np.int32),
                counts=np.zeros(len(choices), np.int32),
                tokens=np.zeros(0, np.int32),
                ends=[
                    RowEnd(
                        row=row,
                        reason=reason,
                        usage=SequenceUsage(prompt, tokens, 0, waited_s, 0.0, 0.0, 0),
                        code=code,
                        message=message,
                    )
                    for row, tokens in enumerate(delivered)
                ],
            )
        )
