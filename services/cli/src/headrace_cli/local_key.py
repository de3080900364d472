"""The API key of the local stack: the one asked for, the one stored, or a new one."""

from __future__ import annotations

from typing import Final

from headrace_gateway.auth.keys import KeyStore
from headrace_gateway.auth.tokens import parse_token

KEY_NAME: Final = "local stack"
SCOPES: Final = ("inference", "admin")


async def usable_key(keys: KeyStore, pepper: bytes, given: str | None, stored: str | None) -> str:
    """A key that the server knows. A stored one that was revoked is replaced.

    Raises ValueError for a given one that cannot be a key.
    """
    if given is not None:
        await keys.adopt(given, name=KEY_NAME, scopes=SCOPES)
        return given
    token = None if stored is None else parse_token(stored.encode(), pepper)
    if stored is not None and token is not None:
        known = {key.public_id: key for key in await keys.list()}
        if token.public_id not in known:  # the server's data was lost
            await keys.adopt(stored, name=KEY_NAME, scopes=SCOPES)
            return stored
        if known[token.public_id].revoked_ms is None:
            return stored
    text, _ = await keys.create(name=KEY_NAME, scopes=SCOPES)
    return text
