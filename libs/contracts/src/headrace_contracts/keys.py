"""Every Redis key, and what it holds. Nothing else spells a key.

Braces mark hash tags, so that all keys of one model, or of one request, share a slot.
"""

from __future__ import annotations

from typing import Final, Literal

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
FORGOTTEN_KEYS: Final = "hr:keys:forgotten"
"""Sorted set: public ids of API keys that were deleted, by when, unix ms; the newest
100,000."""
SWEEPER: Final = "hr:sweeper"
"""String, TTL: the gateway process that clears what is left of the dead, and ends what expired."""
PROBE: Final = "hr:probe"
"""Never written: deleting it shows whether the server takes writes."""

HOLE: Final = "%s"
"""Stands for a name in a pattern of a key; Lua scripts fill it with ``string.format``."""

Hole = Literal["%s"]


def queue(model: str, band: int | Hole, tenant: str) -> str:
    """Stream: work of one band and tenant."""
    return f"hr:{{{model}}}:q:{band}:{tenant}"


def tenants(model: str, band: int | Hole) -> str:
    """Sorted set: tenants with queued work, by virtual token counter."""
    return f"hr:{{{model}}}:tenants:{band}"


def idle_tenants(model: str, band: int | Hole) -> str:
    """Sorted set: tenants without queued work whose counter is above the band's floor."""
    return f"hr:{{{model}}}:idle:{band}"


def floors(model: str) -> str:
    """Hash: band -> the highest minimum its counters have had; a new tenant starts there."""
    return f"hr:{{{model}}}:floors"


def weights(model: str) -> str:
    """Hash: tenant -> `tenant_weights` of the engines, else 1. Counters grow by tokens / weight."""
    return f"hr:{{{model}}}:weights"


def queued(model: str) -> str:
    """Sorted set: queued ids by deadline, unix ms. Its size is the queue's depth."""
    return f"hr:{{{model}}}:queued"


def leases(model: str) -> str:
    """Hash: id -> ``owner attempt gateway slot n``. The truth about who runs what."""
    return f"hr:{{{model}}}:leases"


def expiries(model: str) -> str:
    """Sorted set: leased ids by the lease's expiry, unix ms. Same members as ``leases``."""
    return f"hr:{{{model}}}:expiries"


def holding(model: str, engine: str) -> str:
    """Set: ids that an engine has leases of."""
    return f"hr:{{{model}}}:holding:{engine}"


def orphans(model: str) -> str:
    """Sorted set: begun requests that wait for a successor, by when they lost their engine."""
    return f"hr:{{{model}}}:orphans"


def suspects(model: str) -> str:
    """Sorted set: like ``orphans``, of requests whose engines keep dying; each runs alone."""
    return f"hr:{{{model}}}:suspects"


def quarantine(model: str) -> str:
    """String, TTL: the engine that empties itself to run a suspect alone."""
    return f"hr:{{{model}}}:quarantine"


def sources(model: str) -> str:
    """Set: gateways with live requests of the model."""
    return f"hr:{{{model}}}:sources"


def requests_of(model: str, gateway: str) -> str:
    """Set: live requests of the model that a gateway reads."""
    return f"hr:{{{model}}}:of:{gateway}"


def cancels(model: str) -> str:
    """Hash: ``id`` or ``id/choice`` -> CancelMark. The truth about cancels."""
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
    """Stream, TTL once finished: resume log of one request."""
    return f"hr:{{{request}}}:log"


def state(request: str) -> str:
    """Hash, TTL once finished: copy of a request's state, for reading."""
    return f"hr:{{{request}}}:req"


def body(request: str) -> str:
    """String: a record too large for a stream entry."""
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


def idempotency(tenant: str, key_id: str, digest: str) -> str:
    """String, TTL: request id and body's hash of the call that an API key made under an
    Idempotency-Key, and `kept` once it is queued, by the hash of that."""
    return f"hr:{{{tenant}}}:idem:{key_id}:{digest}"


def limits(tenant: str) -> str:
    """Prefix of a tenant's limit keys."""
    return f"hr:{{{tenant}}}:lim"


def rate(tenant: str, key_id: str) -> str:
    """Hash, TTL: what is left of one API key's requests and tokens of a minute."""
    return f"{limits(tenant)}:rate:{key_id}"


def running(tenant: str, key_id: str) -> str:
    """Sorted set: live requests of one API key by when their reservation lapses, unix ms."""
    return f"{limits(tenant)}:running:{key_id}"
