"""API keys: durable, a hash each, and a set that lists them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Final

from headrace_contracts import keys

from headrace_transport.interface import ApiKey
from headrace_transport.names import check_model, check_name
from headrace_transport.part import Part
from headrace_transport.replies import (
    Argument,
    as_fields,
    as_int,
    as_list,
    as_text,
    given,
    readable,
)

_MOST: Final = 100_000
"""Ids of deleted keys that are remembered."""
_AT_ONCE: Final = 1_000
"""Keys that one round trip reads: all of many would not come in a command's time."""


class ApiKeys(Part):
    """API keys over Redis. A secret never comes here, only its HMAC."""

    async def api_key(self, public_id: str) -> ApiKey | None:
        """The key, or None; also None for an id that no key can have."""
        fields = as_fields(await self._server.command("HGETALL", keys.api_key(public_id)))
        return _key_of(public_id, fields) if fields else None

    async def api_keys(self) -> Sequence[ApiKey]:
        """All keys that can be read, by public id."""
        names: list[str] = []
        for reply in as_list(await self._server.command("SMEMBERS", keys.API_KEYS)):
            with self.damaged.skipped("key", repr(reply)):
                names.append(as_text(reply))
        names.sort()
        found: list[ApiKey] = []
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            hashes = await self._server.answers([("HGETALL", keys.api_key(name)) for name in some])
            for name, reply in zip(some, hashes, strict=True):
                with self.damaged.skipped("key", name):
                    if fields := as_fields(given(reply)):
                        found.append(_key_of(name, fields))
        return found

    async def api_key_end(self, public_id: str) -> int | None:
        """See ``GatewayWire.api_key_end``."""
        end = await self._server.command("HGET", keys.api_key(public_id), "revoked_ms")
        return None if end is None else as_int(end)

    async def put_api_key(self, key: ApiKey) -> None:
        """Stores a key, or replaces it."""
        check_name("a key id", key.public_id)
        check_name("a tenant", key.tenant)
        for model in key.models:
            check_model(model)
        fields: list[Argument] = ["digest", key.digest, "name", key.name, "tenant", key.tenant]
        fields += ["scopes", " ".join(sorted(key.scopes)), "models", " ".join(sorted(key.models))]
        fields += ["created_ms", key.created_ms, "band", key.band]
        for name, value in (
            ("expires_ms", key.expires_ms),
            ("revoked_ms", key.revoked_ms),
            ("max_concurrency", key.max_concurrency),
            ("requests_per_minute", key.requests_per_minute),
            ("tokens_per_minute", key.tokens_per_minute),
        ):
            if value is not None:
                fields += [name, value]
        name = keys.api_key(key.public_id)
        # the list first: where it cannot be written, there is no key that nobody sees
        await self._server.command("SADD", keys.API_KEYS, key.public_id)
        await self._server.pipeline([("MULTI",), ("DEL", name), ("HSET", name, *fields), ("EXEC",)])

    async def revoke_api_key(self, public_id: str, *, at_ms: int) -> bool:
        """See ``GatewayWire.revoke_api_key``."""
        names = [keys.api_key(public_id)]
        return bool(as_int(await self._server.run("revoke_key", names, [at_ms])))

    async def forget_api_key(self, public_id: str, *, over_ms: int | None = None) -> bool:
        """See ``GatewayWire.forget_api_key``."""
        check_name("a key id", public_id)
        names = [keys.api_key(public_id), keys.API_KEYS, keys.FORGOTTEN_KEYS]
        arguments = [public_id, "" if over_ms is None else over_ms, _MOST]
        return bool(as_int(await self._server.run("forget_key", names, arguments)))

    async def api_key_is_forgotten(self, public_id: str) -> bool:
        """See ``GatewayWire.api_key_is_forgotten``."""
        names = [keys.FORGOTTEN_KEYS]
        return bool(as_int(await self._server.run("forgotten_key", names, [public_id])))

    async def forgotten_api_keys(self) -> Set[str]:
        """See ``GatewayWire.forgotten_api_keys``."""
        reply = await self._server.command("ZRANGE", keys.FORGOTTEN_KEYS, 0, -1)
        return {as_text(name) for name in as_list(reply)}


def _key_of(public_id: str, fields: dict[str, bytes]) -> ApiKey:
    def number(name: str) -> int | None:
        return int(fields[name]) if name in fields else None

    with readable(f"the API key {public_id}"):
        return ApiKey(
            public_id=public_id,
            digest=fields["digest"],
            name=fields["name"].decode(),
            tenant=fields["tenant"].decode(),
            scopes=frozenset(fields["scopes"].decode().split()),
            models=frozenset(fields["models"].decode().split()),
            created_ms=int(fields["created_ms"]),
            expires_ms=number("expires_ms"),
            revoked_ms=number("revoked_ms"),
            band=int(fields["band"]),
            max_concurrency=number("max_concurrency"),
            requests_per_minute=number("requests_per_minute"),
            tokens_per_minute=number("tokens_per_minute"),
        )
