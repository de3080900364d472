"""``/admin/keys``: making, listing and revoking API keys, for keys with the scope ``admin``."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from headrace_contracts.codes import Code
from headrace_kit.clock import Clock
from headrace_kit.log import get_logger
from headrace_transport.interface import ApiKey
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headrace_gateway.errors import transport_errors
from headrace_gateway.http.body import json_object
from headrace_gateway.http.errors import HttpError, bad_request
from headrace_gateway.http.guard import permitted
from headrace_gateway.http.openapi import takes
from headrace_gateway.http.ports import Authenticates, HttpSettings, KeyAdmin
from headrace_gateway.http.schema.fields import typed
from headrace_gateway.http.schema.keys import KeyFields

log = get_logger(__name__)

_NO_STORE: Final = {"cache-control": "no-store"}


def key_routes(
    keys: KeyAdmin, auth: Authenticates, settings: HttpSettings, clock: Clock
) -> APIRouter:
    """The routes of this family."""
    router = APIRouter(prefix="/admin/keys", tags=["keys"])

    @router.get("")
    async def list_keys(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """Lists every key that can be read, the oldest first, without its secret. One that is
        damaged is named in the gateway's log."""
        permitted(request, auth, "admin")
        with transport_errors():
            listed = await keys.list()
        return JSONResponse({"object": "list", "data": [_body(key) for key in listed]})

    @router.post("", openapi_extra=takes(KeyFields))
    async def create_key(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        """Makes a key. Its text is in this answer, and nowhere else."""
        caller = permitted(request, auth, "admin")
        body = await json_object(
            request, max_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s
        )
        wish = typed(KeyFields, body)
        ends = None if wish.expires_in_s is None else clock.wall_ms() + wish.expires_in_s * 1000
        try:
            with transport_errors():
                text, key = await keys.create(
                    name=wish.name,
                    tenant=wish.tenant,
                    scopes=wish.scopes,
                    models=wish.models,
                    band=wish.band,
                    expires_ms=ends,
                    max_concurrency=wish.max_concurrency,
                    requests_per_minute=wish.requests_per_minute,
                    tokens_per_minute=wish.tokens_per_minute,
                )
        except ValueError as error:
            raise bad_request(f"{error}.") from error
        log.info("key.made", key=key.public_id, by=caller.key_id)
        return JSONResponse({**_body(key), "key": text}, status_code=201, headers=_NO_STORE)

    @router.delete("/{key_id}")
    async def revoke_key(  # pyright: ignore[reportUnusedFunction]
        request: Request, key_id: str
    ) -> Response:
        """Revokes a key: gateways refuse it within ``key_cache_s``."""
        caller = permitted(request, auth, "admin")
        with transport_errors():
            revoked = await keys.revoke(key_id)
        if not revoked:
            raise HttpError(Code.NOT_FOUND, "There is no key of this id.", param="key_id")
        log.info("key.revoked", key=key_id, by=caller.key_id)
        return JSONResponse({"id": key_id, "object": "key", "revoked": True})

    return router


def _body(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.public_id,
        "object": "key",
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "models": sorted(key.models),
        "band": key.band,
        "created": key.created_ms // 1000,
        "expires": _seconds(key.expires_ms),
        "revoked": _seconds(key.revoked_ms),
        "max_concurrency": key.max_concurrency,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
    }


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1000
