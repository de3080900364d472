"""Idempotency keys: a call that is made again is the call that was made before.

The name is held before the call is planned, so that of two equal calls at once one runs; what is
refused lets go of it. Next: headrace_gateway.inference.service
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Final

from headrace_contracts.codes import FinishReason
from headrace_kit.log import get_logger
from headrace_transport.interface import GatewayWire

from headrace_gateway.errors import (
    BackendUnavailable,
    Conflict,
    GatewayError,
    RequestNotFound,
    transport_errors,
)
from headrace_gateway.inference import lookup
from headrace_gateway.inference.calls import Call, Caller, OnceKey
from headrace_gateway.inference.lookup import Found

log = get_logger(__name__)

KEPT_MS: Final = 86_400_000
"""How long a key stands for its call."""
ADMITTING_MS: Final = 60_000
"""How long it does while the call is being admitted: a gateway that dies then leaves it free."""
GRACE_S: Final = 60.0
"""How long such a call goes on without a reader: whoever repeats it finds it running."""
PARAM: Final = "Idempotency-Key"
_KEPT: Final = "kept"
"""Last word of a value whose call was queued: what is not found of it then is forgotten."""
_ANSWERED: Final = (FinishReason.STOP, FinishReason.LENGTH)


class Once:
    """Binds keys to calls."""

    def __init__(self, wire: GatewayWire, *, cancelled: Callable[[str], bool]) -> None:
        """``cancelled``: whether this gateway has cancelled a call, and the server may not know yet."""
        self._wire = wire
        self._cancelled = cancelled

    async def hold(self, call: Call, key: OnceKey) -> str | None:
        """Holds the key for a call. None: it is the first. Else the id of the call that it is a
        repetition of; one that failed, or was cancelled (its engine may not have heard of that
        yet), is forgotten, and this one is the first.

        Raises ``Conflict`` for another body or route and for a call that is forgotten, and
        ``BackendUnavailable`` while the first is being admitted.
        """
        value, instead = _value(call, key), ""
        while True:
            held = await self._bind(call, key, value, ADMITTING_MS, instead=instead)
            if held == value:
                return None
            request_id, *words = held.split(" ")
            if not words:  # damaged: nobody can tell which call it was
                instead = held
                continue
            body, *kept = words
            if body != key.body:
                raise Conflict(
                    "This key was used for a call with another body, or on another route.",
                    param=PARAM,
                )
            try:
                found = await lookup.find(self._wire, request_id, call.caller)
            except RequestNotFound as error:
                if kept:
                    raise forgotten() from error
                raise BackendUnavailable(
                    "The call of this Idempotency-Key is being admitted.", retry_after_s=1
                ) from None
            if await self._answers(request_id, found, call.caller):
                return request_id
            instead = held

    async def _answers(self, request_id: str, found: Found, caller: Caller) -> bool:
        """Whether a call has been answered, or is on its way to that."""
        if (answered := _answered(found)) is not None:
            return answered
        if self._cancelled(request_id):
            return False
        with transport_errors():
            marks = await self._wire.cancels(found.first.model, [name for name, _ in found.states])
        # of one choice, a mark only says where it stopped
        if any(not mark.HasField("choice") for each in marks.values() for mark in each):
            return False
        # A mark goes when its request ends, which may have been since the states were read.
        try:
            answered = _answered(await lookup.find(self._wire, request_id, caller))
        except RequestNotFound as error:
            raise forgotten() from error
        return answered is not False

    async def keep(self, call: Call, key: OnceKey) -> None:
        """The call is queued: the key stands for it from now on. Never raises: the call runs."""
        try:
            value = _value(call, key)
            await self._bind(call, key, f"{value} {_KEPT}", KEPT_MS, instead=value)
        except GatewayError:
            log.warning("once.not_kept", id=call.request_id)

    async def let_go(self, call: Call, key: OnceKey) -> None:
        """The call was refused: the key is free. If the server is away it is soon."""
        try:
            await self._bind(call, key, _value(call, key), 0)
        except GatewayError:
            log.debug("once.not_let_go", id=call.request_id)

    async def _bind(
        self, call: Call, key: OnceKey, value: str, ttl_ms: int, *, instead: str = ""
    ) -> str:
        caller = call.caller
        with transport_errors():
            return await self._wire.bind_once(
                caller.tenant, caller.key_id, key.name, value, ttl_ms=ttl_ms, instead=instead
            )


def _answered(found: Found) -> bool | None:
    """Whether a call that has ended was answered; None: it goes on."""
    states = [state for _, state in found.states]
    if any(state.status != "finished" for state in states):
        return None
    return all(state.finish in _ANSWERED for state in states)


def forgotten() -> Conflict:
    """What is said of a key whose call's answer is gone."""
    return Conflict(
        "The call of this key has ended, and its answer is no longer kept.", param=PARAM
    )


def once_key(key: str, body: bytes) -> OnceKey:
    """What of a key and a body is kept: their hashes."""
    return OnceKey(sha256(key.encode()).hexdigest()[:32], sha256(body).hexdigest()[:32])


def _value(call: Call, key: OnceKey) -> str:
    return f"{call.request_id} {key.body}"
