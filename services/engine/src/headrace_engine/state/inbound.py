"""What comes through the door to the engine thread.

Owner    whoever holds it; given away by the mailbox
Writes   nothing
Never    blocks
Rules    request.one-terminal-status
Next     headrace_engine.loop.thread
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace_contracts.codes import FinishReason

from headrace_engine.state.request import Request, RequestHandle


@dataclass(frozen=True, slots=True)
class Cancel:
    """End one request, or one choice of it."""

    handle: RequestHandle
    reason: FinishReason
    """CANCELLED, STOP (a stop string was found by the gateway) or DEADLINE."""
    choice: int | None = None
    """None: every choice."""


# Written out, since to call ``list[X]`` takes ten times as long as ``[]``, and every pass has one.
def _no_requests() -> list[Request]:
    return []


def _no_cancels() -> list[Cancel]:
    return []


def _no_times() -> dict[RequestHandle, float]:
    return {}


@dataclass(slots=True)
class Inbound:
    """What one ``pop`` brings to the engine thread."""

    requests: list[Request] = field(default_factory=_no_requests)
    cancels: list[Cancel] = field(default_factory=_no_cancels)
    pushed_s: dict[RequestHandle, float] = field(default_factory=_no_times)
    """When each request came to the door, on the engine's monotonic clock."""
    drain: bool = False
    """No new request will come; finish what is here."""
    abort: bool = False
    """Give everything a terminal status and leave the loop."""
