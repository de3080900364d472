"""Limits of a key in a minute: taken before a request, corrected after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headrace_contracts import keys

from headrace_transport.interface import Allowance, Rates
from headrace_transport.names import check_name
from headrace_transport.part import Part
from headrace_transport.replies import as_int, as_list

MINUTE_MS = 60_000


class RateLimits(Part):
    """Buckets over Redis."""

    async def take_rate(
        self,
        tenant: str,
        key_id: str,
        rates: Rates,
        *,
        requests: int,
        tokens: int,
        must: bool,
    ) -> Allowance:
        """See ``GatewayWire.take_rate``."""
        check_name("a tenant", tenant)
        name = keys.rate(tenant, key_id)
        reply = await self._server.run(
            "rate",
            [name],
            [rates.requests or 0, rates.tokens or 0, requests, tokens, int(must)],
        )
        granted, *numbers = (as_int(each) for each in as_list(reply))
        return Allowance(bool(granted), *numbers)


@dataclass(slots=True)
class Buckets:
    """One key's buckets in memory, as ``rate.lua``."""

    at_ms: int | None = None
    requests: float = math.inf
    tokens: float = math.inf

    def take(
        self, rates: Rates, *, requests: int, tokens: int, must: bool, now_ms: int
    ) -> Allowance:
        """Takes or gives back at ``now_ms``."""
        passed = 0 if self.at_ms is None else max(0, now_ms - self.at_ms)
        self.at_ms = now_ms
        levels: list[float] = []
        amounts: list[int] = []
        wait_ms = 0
        for limit, level, amount in (
            (rates.requests or 0, self.requests, requests),
            (rates.tokens or 0, self.tokens, tokens),
        ):
            level = min(limit, level + limit * passed / MINUTE_MS)
            amount = min(amount, limit) if must or not limit else amount
            if must and level < amount:
                wait_ms = max(wait_ms, math.ceil((amount - level) * MINUTE_MS / limit))
            levels.append(level)
            amounts.append(amount)
        limits = (rates.requests or 0, rates.tokens or 0)
        if not wait_ms:
            levels = [
                min(limit, level - amount)
                for limit, level, amount in zip(limits, levels, amounts, strict=True)
            ]
        self.requests, self.tokens = levels
        full = [
            math.ceil((limit - level) * MINUTE_MS / limit) if limit else 0
            for limit, level in zip(limits, levels, strict=True)
        ]
        left = [math.floor(level) for level in levels]
        return Allowance(not wait_ms, left[0], left[1], wait_ms, full[0], full[1])
