"""What may be set about the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WireOptions:
    """Times and bounds of one process's wire. All processes of a deployment use the same TTLs."""

    op_timeout_s: float = 2.0
    """Deadline of one command, on top of the time it may block."""
    connect_timeout_s: float = 2.0
    max_connections: int = 16
    """Commands in flight at once; blocking readers have connections besides."""
    state_ttl_ms: int = 3_600_000
    """How long a finished request's state can be read."""
    log_ttl_ms: int = 900_000
    """How long a finished request's resume log can be read."""
    blob_ttl_ms: int = 7 * 86_400_000
    """How long a model's file stays that no card names: not yet, or no more."""
    reservation_ms: int = 86_400_000
    """After this a live request without a deadline counts no more for its key's concurrency."""
    sign_of_life_ms: int = 15_000
    """How long a submit or an attach counts as its gateway's beat."""
    reap_after_outage_s: float = 10.0
    """How long after an outage nobody is taken for dead: others could not beat either."""
    resume_grace_ms: int = 0
    """How long the requests of a gateway outlive its lease."""
