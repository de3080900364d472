"""Held requests for tests of the engine's intake."""

from __future__ import annotations

from headrace_contracts.limits import WIRE_VERSION
from headrace_contracts.pb.queue_pb2 import RequestRecord, Sampling
from headrace_engine.intake.held import Held
from headrace_engine.state.request import RequestHandle


def make_record(
    request: str = "r1",
    *,
    n: int = 1,
    prompt: tuple[int, ...] = (5, 6, 7),
    max_new_tokens: int = 8,
    gateway: str = "gw",
    slot: int = 10,
    model: str = "m",
) -> RequestRecord:
    """A record that any engine accepts."""
    return RequestRecord(
        version=WIRE_VERSION,
        id=request,
        model=model,
        gateway=gateway,
        slot=slot,
        tenant="t",
        band=1,
        key_id="k",
        prompt=prompt,
        n=n,
        sampling=Sampling(max_new_tokens=max_new_tokens, top_p=1.0, repetition_penalty=1.0, seed=7),
    )


def make_held(
    request: str = "r1",
    *,
    handle: int = 1,
    n: int = 1,
    attempt: int = 1,
    gateway: str = "gw",
    slot: int = 10,
) -> Held:
    """A request as it is held right after its claim."""
    return Held(
        record=make_record(request, n=n, gateway=gateway, slot=slot),
        choices=n,
        attempt=attempt,
        handle=RequestHandle(handle),
        claimed_s=0.0,
        gateway=gateway,
        slot=slot,
    )
