"""Every Redis key, and what it holds. Nothing else spells a key.

Braces mark hash tags, so that all keys of one model, or of one request, share a slot.
"""

from __future__ import annotations

from typing import Final

BANDS: Final = 4
"""Priority bands, 0 the most urgent."""
DEFAULT_BAND: Final = 1
ENGINE_GROUP: Final = "engines"
"""Consumer group of every work stream."""

MODELS: Final = "hr:models"
"""Sorted set: carded models by expiry, +inf while the card stands."""
GATEWAYS: Final = "hr:gateways"
"""Sorted set: gateway processes by expiry, unix ms."""
API_KEYS: Final = "hr:keys"
"""Set: public ids of API keys."""


def queue(model: str, band: int, tenant: str) -> str:
    """Stream: work of one band and tenant."""
    return f"hr:{{{model}}}:q:{band}:{tenant}"


def tenants(model: str, band: int) -> str:
    """Sorted set: tenants with queued work, by virtual token counter."""
    return f"hr:{{{model}}}:tenants:{band}"


def queued(model: str) -> str:
    """Sorted set: queued ids by deadline, unix ms. Its size is the queue's depth."""
    return f"hr:{{{model}}}:queued"


def leases(model: str) -> str:
    """Hash: id -> owner, attempt, expiry, gateway. The truth about who runs what."""
    return f"hr:{{{model}}}:leases"


def cancels(model: str) -> str:
    """Hash: id -> CancelMark. The truth about cancels."""
    return f"hr:{{{model}}}:cancel"


def bell(model: str) -> str:
    """List: wakes engines that wait for work."""
    return f"hr:{{{model}}}:bell"


def card(model: str) -> str:
    """String: the ModelCard."""
    return f"hr:{{{model}}}:card"


def dead_letters(model: str) -> str:
    """Stream: poison requests, with the reason."""
    return f"hr:{{{model}}}:dlq"


def engines(model: str) -> str:
    """Sorted set: engine processes of a model by expiry, unix ms."""
    return f"hr:{{{model}}}:engines"


def blob(digest: str) -> str:
    """String: a file by its SHA-256, in hex."""
    return f"hr:blob:{digest}"


def control(engine: str) -> str:
    """Stream: Control entries for one engine process."""
    return f"hr:ctl:{engine}"


def out(gateway: str) -> str:
    """Stream: frames and fences for one gateway process."""
    return f"hr:out:{gateway}"


def log(request: str) -> str:
    """Stream, TTL: resume log of one request."""
    return f"hr:{{{request}}}:log"


def state(request: str) -> str:
    """Hash, TTL: copy of a request's state, for reading."""
    return f"hr:{{{request}}}:req"


def body(request: str) -> str:
    """String, TTL: a record too large for a stream entry."""
    return f"hr:{{{request}}}:body"


def engine(process: str) -> str:
    """Hash, TTL: lease of one engine process."""
    return f"hr:engine:{process}"


def gateway(process: str) -> str:
    """Hash, TTL: lease of one gateway process."""
    return f"hr:gateway:{process}"


def api_key(public_id: str) -> str:
    """Hash: one API key. Durable."""
    return f"hr:key:{public_id}"


def limits(tenant: str) -> str:
    """Prefix of a tenant's limit keys."""
    return f"hr:{{{tenant}}}:lim"
