"""The Lua scripts: read from the package, put together with their prelude, named by SHA-1.

Their flags let work that was accepted go on and end while the server is out of memory;
``submit`` is refused then, so that memory comes back, and ``restore_key``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

from headrace_contracts import keys
from headrace_contracts.keys import BANDS, HOLE

from headrace_transport.options import WireOptions

_PRELUDE = "-- prelude common\n"


@dataclass(frozen=True, slots=True)
class Script:
    """One script, ready to be sent."""

    name: str
    text: str
    sha: str


@cache
def script(name: str) -> Script:
    """The script of that name."""
    folder = files("headrace_transport") / "scripts"
    text = (folder / f"{name}.lua").read_text()
    if _PRELUDE in text:
        # the first line holds the flags, and must stay the first
        flags, _, rest = text.partition("\n")
        text = flags + "\n" + (folder / "common.lua").read_text() + rest
    return Script(name=name, text=text, sha=sha1(text.encode(), usedforsecurity=False).hexdigest())


def model_keys(model: str) -> list[str]:
    """KEYS of every script with the common prelude, in the order its header gives."""
    return [
        keys.leases(model),
        keys.expiries(model),
        keys.orphans(model),
        keys.suspects(model),
        keys.queued(model),
        keys.cancels(model),
        keys.bell(model),
        keys.dead_letters(model),
        keys.floors(model),
        keys.weights(model),
        keys.quarantine(model),
        keys.sources(model),
        keys.GATEWAYS,
    ]


def shared_keys(model: str) -> list[str]:
    """Every key that all of a model's requests share; scripts make some of them of patterns."""
    return [
        *model_keys(model),
        keys.engines(model),
        *(keys.tenants(model, band) for band in range(BANDS)),
        *(keys.idle_tenants(model, band) for band in range(BANDS)),
    ]


def model_arguments(model: str, options: WireOptions) -> list[str | int]:
    """The first ARGV of every script with the common prelude, in the order its header gives."""
    return [
        keys.queue(model, HOLE, HOLE),
        keys.tenants(model, HOLE),
        keys.idle_tenants(model, HOLE),
        keys.holding(model, HOLE),
        keys.requests_of(model, HOLE),
        keys.state(HOLE),
        keys.log(HOLE),
        keys.body(HOLE),
        keys.out(HOLE),
        keys.control(HOLE),
        keys.running(HOLE, HOLE),
        options.reservation_ms,
        options.state_ttl_ms,
        options.log_ttl_ms,
    ]
