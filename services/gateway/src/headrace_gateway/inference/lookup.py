"""Requests as the server knows them, for those to whom they belong.

Next: headrace_gateway.inference.resume
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace_contracts.codes import FinishReason
from headrace_contracts.pb.queue_pb2 import Usage
from headrace_transport.endings import worst
from headrace_transport.errors import RecordRejected
from headrace_transport.interface import GatewayWire, RequestState

from headrace_gateway.errors import RequestNotFound, transport_errors
from headrace_gateway.inference.calls import Caller, UsageTotal
from headrace_gateway.inference.resume import EdgeNote, record_ids

Status = Literal["queued", "running", "finished"]


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """A request as its caller sees it."""

    id: str
    model: str
    status: Status
    created_ms: int
    attempt: int
    n: int
    prompt_tokens: int
    finish: FinishReason | None
    usage: UsageTotal | None
    tokens: int
    """Generated so far: all of them once it has ended, before that those that are logged."""


@dataclass(frozen=True, slots=True)
class Found:
    """The records of one call that the server still knows, in order."""

    states: Sequence[tuple[str, RequestState]]
    """Record id and state; never empty."""
    complete: bool
    """Whether none is forgotten."""

    @property
    def first(self) -> RequestState:
        """The first record's state, which stands for the call where all are alike."""
        return self.states[0][1]


def check_owner(tenant: str, key_id: str, call_id: str, caller: Caller) -> None:
    """Another key's request does not exist for a caller: ids are no oracle."""
    if (tenant, key_id) != (caller.tenant, caller.key_id):
        raise RequestNotFound(call_id)


async def find(wire: GatewayWire, call_id: str, caller: Caller) -> Found:
    """The caller's call of that id. Raises ``RequestNotFound`` and ``BackendUnavailable``."""
    with transport_errors():
        try:
            return await _find(wire, call_id, caller)
        except RecordRejected as error:  # what can be no id names no request
            raise RequestNotFound(call_id) from error


def info_of(call_id: str, found: Found) -> RequestInfo:
    """Sums over a call's records."""
    states = [state for _, state in found.states]
    statuses = {state.status for state in states}
    status: Status = "finished"
    if "running" in statuses:
        status = "running"
    elif "queued" in statuses:
        status = "queued"
    finishes = [state.finish for state in states if state.finish is not None]
    usage = _total([state.usage for state in states if state.usage is not None])
    return RequestInfo(
        id=call_id,
        model=found.first.model,
        status=status,
        created_ms=found.first.created_ms,
        attempt=max(state.attempt for state in states),
        n=found.first.n,
        prompt_tokens=sum(state.prompt_tokens for state in states),
        finish=worst(finishes) if status == "finished" and finishes else None,
        usage=usage,
        tokens=sum(
            state.tokens if state.usage is None else state.usage.completion_tokens
            for state in states
        ),
    )


def ended(info: RequestInfo, finish: FinishReason | None, usage: UsageTotal) -> RequestInfo:
    """A request that has ended, of which the server does not say so yet."""
    return replace(
        info, status="finished", finish=finish, usage=usage, tokens=usage.completion_tokens
    )


async def _find(wire: GatewayWire, call_id: str, caller: Caller) -> Found:
    state = await wire.request_state(call_id)
    if state is not None:
        check_owner(state.tenant, state.key_id, call_id, caller)
        return Found([(call_id, state)], complete=True)
    first = f"{call_id}.0"
    state = await wire.request_state(first)
    if state is None:
        raise RequestNotFound(call_id)
    check_owner(state.tenant, state.key_id, call_id, caller)
    note = EdgeNote.decode(state.edge)
    ids = record_ids(call_id, note.prompts if note else 1)
    found = [(first, state)]
    for record_id in ids[1:]:
        other = await wire.request_state(record_id)
        if other is not None:
            found.append((record_id, other))
    return Found(found, complete=len(found) == len(ids))


def _total(usages: Sequence[Usage]) -> UsageTotal | None:
    if not usages:
        return None
    return UsageTotal(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
    )
