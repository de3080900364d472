"""Which type each key has that is emptied where somebody made it another.

All that such a key holds is made anew by those who use it. What is not here stands for itself when
it is damaged: cards and their files, API keys and their list, what a request has of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from headrace_contracts import keys
from headrace_contracts.keys import HOLE

KeyType: TypeAlias = Literal["hash", "list", "set", "stream", "string", "zset"]
"""As the server's TYPE says it."""

_FAMILIES: Final[Mapping[str, KeyType]] = {
    keys.MODELS: "zset",
    keys.GATEWAYS: "zset",
    keys.FORGOTTEN_KEYS: "zset",
    keys.SWEEPER: "string",
    keys.queue(HOLE, HOLE, HOLE): "stream",
    keys.tenants(HOLE, HOLE): "zset",
    keys.idle_tenants(HOLE, HOLE): "zset",
    keys.floors(HOLE): "hash",
    keys.weights(HOLE): "hash",
    keys.queued(HOLE): "zset",
    keys.leases(HOLE): "hash",
    keys.expiries(HOLE): "zset",
    keys.holding(HOLE, HOLE): "set",
    keys.orphans(HOLE): "zset",
    keys.suspects(HOLE): "zset",
    keys.quarantine(HOLE): "string",
    keys.sources(HOLE): "set",
    keys.requests_of(HOLE, HOLE): "set",
    keys.cancels(HOLE): "hash",
    keys.bell(HOLE): "list",
    keys.dead_letters(HOLE): "stream",
    keys.engines(HOLE): "zset",
    keys.control(HOLE): "stream",
    keys.out(HOLE): "stream",
    keys.engine(HOLE): "hash",
    keys.gateway(HOLE): "hash",
    keys.idempotency(HOLE, HOLE, HOLE): "string",
    keys.rate(HOLE, HOLE): "hash",
    keys.running(HOLE, HOLE): "zset",
}
_NAME: Final = "[^{}]+"
"""A name in a key: none has braces, which mark the tag."""
_PATTERNS: Final[Mapping[re.Pattern[str], KeyType]] = {
    re.compile(_NAME.join(map(re.escape, family.split(HOLE)))): kind
    for family, kind in _FAMILIES.items()
}


def type_of(key: str) -> KeyType | None:
    """The type of a key that is emptied where it is of another; None for what stands for itself,
    and for what is no key of ours.
    """
    for pattern, kind in _PATTERNS.items():
        if pattern.fullmatch(key):
            return kind
    return None
