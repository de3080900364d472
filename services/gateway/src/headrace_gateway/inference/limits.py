"""What a key may ask for in a minute: reserved before a call, settled by what it used.

A reservation is the prompt and all that may be generated, at most a whole minute's. The end of the
call gives back what was not used, or takes what was used besides. A gateway that dies, or a server
that is away then, leaves a reservation standing: it comes back by itself within a minute.
Next: headrace_gateway.inference.receipt
"""

from __future__ import annotations

import math
from typing import Final

from headrace_kit.log import get_logger
from headrace_transport.errors import TransportUnavailable
from headrace_transport.interface import Allowance, GatewayWire, Rates

from headrace_gateway.errors import RateLimitExceeded, transport_errors
from headrace_gateway.inference.calls import Bucket, Caller, RateState, Reservation
from headrace_gateway.inference.running import OpenCall
from headrace_gateway.inference.tasks import Tasks

log = get_logger(__name__)

_RETRY_MIN_S: Final = 1


class RateLimits:
    """Reserves and settles. A key without limits costs nothing."""

    def __init__(self, wire: GatewayWire, tasks: Tasks) -> None:
        self._wire = wire
        self._tasks = tasks

    async def reserve(self, call: OpenCall, caller: Caller) -> None:
        """Takes one request and the most tokens that ``call`` can use.

        Raises ``RateLimitExceeded``, with nothing taken.
        """
        rates = Rates(caller.requests_per_minute, caller.tokens_per_minute)
        if rates.requests is None and rates.tokens is None:
            return
        wanted = sum(
            session.prompt_tokens + session.record.n * session.record.sampling.max_new_tokens
            for session in call.sessions
        )
        tokens = wanted if rates.tokens is None else min(wanted, rates.tokens)
        with transport_errors():
            allowance = await self._wire.take_rate(
                call.tenant, call.key_id, rates, requests=1, tokens=tokens, must=True
            )
        state = _state(rates, allowance)
        if not allowance.granted:
            raise _refusal(state, allowance, tokens)
        call.reservation = Reservation(rates.requests, rates.tokens, tokens)
        call.rates = state

    def refund(self, call: OpenCall) -> None:
        """The call was not queued after all: as if it had not been made."""
        taken, call.reservation = call.reservation, None
        if taken is not None:
            self._correct(call, taken, requests=-1, tokens=-taken.tokens)

    def settle(self, call: OpenCall) -> None:
        """The call has ended: what it used counts, not what it might have."""
        taken, call.reservation = call.reservation, None
        if taken is not None and taken.tokens_per_minute is not None:
            used = call.usage.prompt_tokens + call.usage.completion_tokens
            self._correct(call, taken, requests=0, tokens=used - taken.tokens)

    def _correct(self, call: OpenCall, taken: Reservation, *, requests: int, tokens: int) -> None:
        if not requests and not tokens:
            return
        rates = Rates(taken.requests_per_minute, taken.tokens_per_minute)
        job = self._send(call.tenant, call.key_id, rates, requests, tokens)
        self._tasks.spawn(job, name="settle rates")

    async def _send(
        self, tenant: str, key_id: str, rates: Rates, requests: int, tokens: int
    ) -> None:
        try:
            await self._wire.take_rate(
                tenant, key_id, rates, requests=requests, tokens=tokens, must=False
            )
        except TransportUnavailable:
            log.debug("rates.not_settled", key=key_id, tokens=tokens)


def _state(rates: Rates, allowance: Allowance) -> RateState:
    def bucket(limit: int | None, left: int, full_ms: int) -> Bucket | None:
        return None if limit is None else Bucket(limit, max(0, left), full_ms / 1000)

    return RateState(
        requests=bucket(rates.requests, allowance.requests_left, allowance.requests_full_ms),
        tokens=bucket(rates.tokens, allowance.tokens_left, allowance.tokens_full_ms),
    )


def _refusal(state: RateState, allowance: Allowance, tokens: int) -> RateLimitExceeded:
    if state.requests is not None and state.requests.left < 1:
        what = f"This key may make {state.requests.limit} requests a minute."
    else:
        assert state.tokens is not None
        what = (
            f"This key may use {state.tokens.limit} tokens a minute; {state.tokens.left} are left, "
            f"and prompt and output of this call may need {tokens}."
        )
    retry_s = max(_RETRY_MIN_S, math.ceil(allowance.wait_ms / 1000))
    return RateLimitExceeded(what, retry_after_s=retry_s, rates=state)
