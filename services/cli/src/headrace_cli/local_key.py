"""API keys of the local stack: the one that it prints, and all of them when the server lost them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.tokens import parse_token
from headrace_transport.interface import ApiKey

KEY_NAME: Final = "local stack"
SCOPES: Final = ("inference", "admin")


async def usable_key(keys: KeyStore, pepper: bytes, given: str | None, stored: str | None) -> str:
    """A key that the server knows. A stored one that was revoked is replaced; one that it knows
    under another pepper is made known again.

    Raises ValueError for a given one that cannot be a key.
    """
    if given is not None:
        key = given.strip("\r\n")  # as a file ends that it was read from
        await keys.adopt(key, name=KEY_NAME, scopes=SCOPES)
        return key
    token = None if stored is None else parse_token(stored.encode(), pepper)
    if stored is not None and token is not None:
        known = {key.public_id: key for key in await keys.list()}.get(token.public_id)
        if known is None:  # the server's data was lost, or the key was deleted
            if await keys.adopt_unless_known(stored, name=KEY_NAME, scopes=SCOPES):
                return stored
        elif known.revoked_ms is None:
            if not keys.proves(known, token):  # the pepper is another one now
                await keys.adopt(stored, name=KEY_NAME, scopes=SCOPES)
            return stored
    text, _ = await keys.create(name=KEY_NAME, scopes=SCOPES)
    return text


class KeyWire(Protocol):
    """The part of the wire that holds keys."""

    async def api_keys(self) -> Sequence[ApiKey]: ...

    async def restore_api_key(self, key: ApiKey) -> bool: ...


class KeyKeeper:
    """Puts keys back that the server has lost. The server remembers which were deleted, so no other
    is missing on purpose; each comes back as it was last seen, the revoked ones revoked.
    """

    def __init__(self, wire: KeyWire) -> None:
        self._wire = wire
        self._seen: dict[str, ApiKey] = {}

    async def look(self) -> int:
        """Looks once; how many keys were put back. Raises ``TransportUnavailable``."""
        there = {key.public_id: key for key in await self._wire.api_keys()}
        self._seen |= there
        restored = 0
        for key in [key for name, key in self._seen.items() if name not in there]:
            if await self._wire.restore_api_key(key):
                restored += 1
            else:
                del self._seen[key.public_id]
        return restored
