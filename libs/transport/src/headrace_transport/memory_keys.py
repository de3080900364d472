"""API keys in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace_transport.interface import ApiKey
from headrace_transport.memory_broker import MemoryPart
from headrace_transport.names import check_model, check_name


class MemoryKeys(MemoryPart):
    """API keys."""

    async def api_key(self, public_id: str) -> ApiKey | None:
        """See ``GatewayWire.api_key``."""
        await self._broker.enter()
        return self._broker.keys.get(public_id)

    async def api_keys(self) -> Sequence[ApiKey]:
        """See ``GatewayWire.api_keys``."""
        await self._broker.enter()
        return [self._broker.keys[name] for name in sorted(self._broker.keys)]

    async def put_api_key(self, key: ApiKey) -> None:
        """See ``GatewayWire.put_api_key``."""
        await self._broker.enter()
        self._put_api_key(key)

    def _put_api_key(self, key: ApiKey) -> None:
        check_name("a tenant", key.tenant)
        for model in key.models:
            check_model(model)
        self._broker.keys[check_name("a key id", key.public_id)] = key

    async def restore_api_key(self, key: ApiKey) -> bool:
        """See ``GatewayWire.restore_api_key``."""
        await self._broker.enter()
        if key.public_id in self._broker.forgotten_keys:
            return False
        known = self._broker.keys.get(key.public_id, key)
        ends = [each.revoked_ms for each in (key, known) if each.revoked_ms is not None]
        self._put_api_key(replace(key, revoked_ms=min(ends, default=None)))
        return True

    async def revoke_api_key(self, public_id: str, *, at_ms: int) -> bool:
        """See ``GatewayWire.revoke_api_key``."""
        await self._broker.enter()
        key = self._broker.keys.get(public_id)
        if key is None:
            return False
        known = at_ms if key.revoked_ms is None else key.revoked_ms
        self._broker.keys[public_id] = replace(key, revoked_ms=min(at_ms, known))
        return True

    async def forget_api_key(self, public_id: str, *, over_ms: int | None = None) -> bool:
        """See ``GatewayWire.forget_api_key``."""
        await self._broker.enter()
        key = self._broker.keys.get(check_name("a key id", public_id))
        if key is None:
            return False
        ends = [at for at in (key.revoked_ms, key.expires_ms) if at is not None]
        if over_ms is not None and not any(at < over_ms for at in ends):
            return False
        del self._broker.keys[public_id]
        self._broker.forgotten_keys.add(public_id)
        return True

    async def api_key_is_forgotten(self, public_id: str) -> bool:
        """See ``GatewayWire.api_key_is_forgotten``."""
        await self._broker.enter()
        return public_id in self._broker.forgotten_keys
