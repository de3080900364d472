"""Why a request does not go on, in words: in its queue, at its engine, or between two.

Next: headrace_gateway.inference.lookup
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from headrace_transport.interface import MAX_AHEAD, GatewayWire, RequestState, Standing, Wait

from headrace_gateway.errors import RequestNotFound, transport_errors
from headrace_gateway.inference import lookup
from headrace_gateway.inference.calls import Caller
from headrace_gateway.inference.catalog import Catalog
from headrace_gateway.inference.lookup import Found, RequestInfo

MAX_LISTED: Final = 100
"""Requests in one answer."""
_LOOKED_AT: Final = 500
"""Records of a key that are sorted by age for it."""

_AT_ENGINE: Final[Mapping[str, Callable[[int], str]]] = {
    "priority": lambda _: (
        "Others go first at its engine: by priority, by fair share between tenants, or because "
        "they came before it and wait themselves."
    ),
    "batch_rows": lambda _: "Its engine runs as many sequences as it can hold.",
    "token_budget": lambda _: "The tokens of its engine's batches go to others for now.",
    "blocks": lambda short: f"Its engine's cache is short of {short} blocks for it.",
    "producer": lambda _: "Another request is computing the beginning that both share.",
    "in_flight": lambda _: "It lost its place to another; its last batch is on its way back.",
}
"""By the engine's reason; the number is the reason's detail."""


AsTold = Callable[[RequestInfo], RequestInfo]
"""What this gateway has told its clients of a request counts, where the server lags behind."""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a request stands where it stands."""

    id: str
    status: lookup.Status
    reason: str
    """One word: ``queue``, ``no_engine``, ``successor``, ``running``, ``finished``, or the
    engine's own."""
    explanation: str
    waited_s: float
    """Since it was admitted, whatever it did meanwhile."""
    tokens: int
    ahead: int | None
    """Requests before it in its queue, counted up to ``MAX_AHEAD``; None: it is in none."""
    depth: int | None
    """Queued requests of its model; None where that does not matter."""
    engines: int | None
    """Engines that serve its model; None where that does not matter."""
    engine: str | None
    """Process that has it."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A live request in a list."""

    info: RequestInfo
    reason: str


async def explain(
    wire: GatewayWire,
    catalog: Catalog,
    call_id: str,
    caller: Caller,
    *,
    now_ms: int,
    as_told: AsTold,
) -> Why:
    """Why the caller's request does not go on, or that it does. Of several prompts, the first
    that has not ended tells. Raises ``RequestNotFound``.
    """
    found = await lookup.find(wire, call_id, caller)
    info = as_told(lookup.info_of(call_id, found))
    waited_s = max(0, now_ms - info.created_ms) / 1000
    record_id, state = _open_record(found)
    if info.status == "finished":
        ended = "its tokens are lost" if info.finish is None else info.finish.name.lower()
        text = f"It has ended: {ended}."
        return Why(
            call_id, "finished", "finished", text, waited_s, info.tokens, None, None, None, None
        )
    with transport_errors():
        standing = await wire.standing(state.model, record_id)
    engines = len(await catalog.engines(state.model))
    reason, text = _words(standing, state, engines)
    queued = standing.owner is None
    return Why(
        id=call_id,
        status=info.status,
        reason=reason,
        explanation=text,
        waited_s=waited_s,
        tokens=info.tokens,
        ahead=standing.ahead,
        depth=standing.depth if queued else None,
        engines=engines if queued else None,
        engine=standing.owner,
    )


async def live(
    wire: GatewayWire, catalog: Catalog, caller: Caller, *, limit: int, as_told: AsTold
) -> tuple[list[Listed], bool]:
    """The caller's own requests that have not ended, the newest first, and whether there are
    more.
    """
    with transport_errors():
        records = await wire.live_requests(caller.tenant, caller.key_id, limit=_LOOKED_AT)
    calls = dict.fromkeys(_call_of(record) for record in records)
    found: list[tuple[RequestInfo, Found]] = []
    for call_id in calls:
        with wire.damaged.skipped("request", call_id):
            try:
                each = await lookup.find(wire, call_id, caller)
            except RequestNotFound:
                continue  # it has just ended, and was forgotten
            info = as_told(lookup.info_of(call_id, each))
            if info.status != "finished":
                found.append((info, each))
    found.sort(key=lambda pair: pair[0].created_ms, reverse=True)
    listed: list[Listed] = []
    for info, each in found[:limit]:
        record_id, state = _open_record(each)
        with wire.damaged.skipped("request", info.id):
            with transport_errors():
                standing = await wire.standing(state.model, record_id)
            reason, _ = _words(standing, state, len(await catalog.engines(state.model)))
            listed.append(Listed(info, reason))
    return listed, len(found) > limit or len(records) == _LOOKED_AT


def _open_record(found: Found) -> tuple[str, RequestState]:
    """The first that has not ended, else the first."""
    return next((each for each in found.states if each[1].status != "finished"), found.states[0])


def _call_of(record_id: str) -> str:
    """The id of the call that a record is of."""
    return record_id.partition(".")[0]


def _words(standing: Standing, state: RequestState, engines: int) -> tuple[str, str]:
    if standing.owner is not None:
        return _at_engine(standing.wait, state.tokens)
    if not engines:
        return "no_engine", f"No engine serves {state.model} now."
    if standing.resumes:
        return "successor", (
            "It lost its engine; the next one with room goes on where it stopped, before "
            "everything that has not begun."
        )
    ahead = standing.ahead or 0
    shown = f"{ahead} or more" if ahead >= MAX_AHEAD else str(ahead)
    return "queue", (
        f"It waits for an engine with room: {shown} of its tenant's requests at its priority are "
        f"before it, {standing.depth} are queued for {state.model} in all, and engines that serve "
        f"it: {engines}."
    )


def _at_engine(wait: Wait | None, tokens: int) -> tuple[str, str]:
    if wait is None:
        return "running", f"It runs; {tokens} tokens are logged."
    say = _AT_ENGINE.get(wait.reason)
    if say is None:
        return wait.reason, f"It waits at its engine: {wait.reason} {wait.detail}."
    return wait.reason, say(wait.detail)
