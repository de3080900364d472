"""EngineGateway: the engine's door.

Owner    shared; its mailboxes are the only synchronisation
Writes   mailboxes
Never    blocks a pusher; runs a callback on the engine thread
Rules    request.one-terminal-status, gateway.pop-budget
Next     headrace_engine.loop.thread
"""

from __future__ import annotations

from typing import Protocol

from headrace_engine.state.inbound import Cancel, Inbound
from headrace_engine.state.outputs import PassOutputs
from headrace_engine.state.request import Request


class EngineDoor(Protocol):
    """The door as each thread sees it. ``EngineGateway`` implements it."""

    # any thread
    def push(self, request: Request) -> None:
        """Hands a request over; raises ``EngineDraining`` once drained or closed."""
        ...

    def cancel(self, cancel: Cancel) -> None:
        """Ends a request in whatever state; a no-op for one that has ended or is unknown."""
        ...

    def drain(self) -> None: ...

    def close(self) -> None:
        """Abort: what is queued or running ends as CANCELLED with code DRAINING."""
        ...

    # engine thread
    def pop(self, budget: int, *, block: bool) -> Inbound: ...

    def notify(self, outputs: PassOutputs) -> None: ...

    # signal thread
    def take_outputs(self, timeout_s: float) -> list[PassOutputs] | None:
        """Everything notified since the last call; None once closed and empty."""
        ...
