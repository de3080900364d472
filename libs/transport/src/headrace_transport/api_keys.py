"""API keys: durable, a hash each, and a set that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace_contracts import keys

from headrace_transport.errors import WrongType
from headrace_transport.interface import ApiKey
from headrace_transport.names import check_model, check_name
from headrace_transport.part import Part
from headrace_transport.replies import (
    Argument,
    Reply,
    as_bytes,
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
        for reply in as_list(await self._listing("SMEMBERS", keys.API_KEYS)):
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

    async def put_api_key(self, key: ApiKey) -> None:
        """Stores a key, or replaces it."""
        name, fields = keys.api_key(key.public_id), _fields_of(key)
        if key.revoked_ms is not None:
            fields += ["revoked_ms", key.revoked_ms]
        # the list first: where it cannot be written, there is no key that nobody sees
        await self._listing("SADD", keys.API_KEYS, key.public_id)
        await self._server.pipeline([("MULTI",), ("DEL", name), ("HSET", name, *fields), ("EXEC",)])

    async def restore_api_key(self, key: ApiKey) -> bool:
        """See ``GatewayWire.restore_api_key``."""
        ended = "" if key.revoked_ms is None else key.revoked_ms
        arguments = [key.public_id, ended, *_fields_of(key)]
        return await self._on_key("restore_key", key.public_id, arguments)

    async def revoke_api_key(self, public_id: str, *, at_ms: int) -> bool:
        """See ``GatewayWire.revoke_api_key``."""
        names = [keys.api_key(public_id)]
        return bool(as_int(await self._server.run("revoke_key", names, [at_ms])))

    async def forget_api_key(self, public_id: str, *, over_ms: int | None = None) -> bool:
        """See ``GatewayWire.forget_api_key``."""
        check_name("a key id", public_id)
        arguments = [public_id, "" if over_ms is None else over_ms, _MOST]
        return await self._on_key("forget_key", public_id, arguments)

    async def api_key_is_forgotten(self, public_id: str) -> bool:
        """See ``GatewayWire.api_key_is_forgotten``."""
        names = [keys.FORGOTTEN_KEYS]
        return bool(as_int(await self._server.run("forgotten_key", names, [public_id])))

    async def _on_key(self, script: str, public_id: str, arguments: Sequence[Argument]) -> bool:
        await self._listing("SCARD", keys.API_KEYS)
        names = [keys.api_key(public_id), keys.API_KEYS, keys.FORGOTTEN_KEYS]
        return bool(as_int(await self._server.run(script, names, arguments)))

    async def _listing(self, *command: Argument) -> Reply:
        """A command on the list of keys, which is made anew where it is of another type."""
        try:
            return await self._server.command(*command)
        except WrongType:
            await self._list_anew()
            return await self._server.command(*command)

    async def _list_anew(self) -> None:
        prefix, cursor, found = keys.api_key(""), b"0", set[str]()
        while True:
            reply = await self._server.command(
                "SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _AT_ONCE
            )
            after, names = as_list(reply)
            for name in as_list(names):
                with self.damaged.skipped("key", repr(name)):
                    found.add(check_name("a key id", as_text(name).removeprefix(prefix)))
            if (cursor := as_bytes(after)) == b"0":
                break
        if was := await self._server.run("relist_keys", [keys.API_KEYS], sorted(found)):
            self.damaged.replaced(keys.API_KEYS, as_text(was))


def _fields_of(key: ApiKey) -> list[Argument]:
    """Fields and values of a key's hash, but for its end. Raises ``RecordRejected``."""
    check_name("a key id", key.public_id)
    check_name("a tenant", key.tenant)
    for model in key.models:
        check_model(model)
    fields: list[Argument] = ["digest", key.digest, "name", key.name, "tenant", key.tenant]
    fields += ["scopes", " ".join(sorted(key.scopes)), "models", " ".join(sorted(key.models))]
    fields += ["created_ms", key.created_ms, "band", key.band]
    for name, value in (
        ("expires_ms", key.expires_ms),
        ("max_concurrency", key.max_concurrency),
        ("requests_per_minute", key.requests_per_minute),
        ("tokens_per_minute", key.tokens_per_minute),
    ):
        if value is not None:
            fields += [name, value]
    return fields


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
