"""Checking keys at each call, and keeping them: made, listed, revoked, exported, imported.

Whatever cannot be proved is refused. Next: headrace_gateway.auth.tokens
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, Unpack, cast, get_args

from headrace_contracts.keys import BANDS, DEFAULT_BAND
from headrace_kit.clock import Clock
from headrace_transport.errors import RecordRejected
from headrace_transport.interface import ApiKey, GatewayWire

from headrace_gateway.auth import tokens
from headrace_gateway.errors import (
    BACKEND_RETRY_S,
    BackendUnavailable,
    InvalidApiKey,
    PermissionDenied,
    transport_errors,
)
from headrace_gateway.inference.calls import Caller

Scope = Literal["inference", "admin"]
"""inference: models, generation, one's own requests. admin: the keys of every tenant."""
SCOPES: Final[frozenset[str]] = frozenset(get_args(Scope))

NO_KEY: Final = "An API key is needed: send 'Authorization: Bearer <key>'."
WRONG_KEY: Final = "The API key is not valid."
BEARER: Final = b"bearer"
NO_DIGEST: Final = bytes(32)
CACHE_ENTRIES: Final = 10_000
UNKNOWN_CACHE_S: Final = 0.25
"""How long an id that the server does not know is not asked for again."""
LOST_KEY_S: Final = 60.0
"""How long a key that vanished, and was not deleted, is taken for one that the server lost."""
EXPORT_VERSION: Final = 1
KEPT_OVER_MS: Final = 30 * 86_400_000
"""How long a key that was revoked, or has expired, is still listed."""
LONGEST_MS: Final = 100 * 366 * 86_400_000
"""How far away a key's end may be: further off it is no date any more."""
MOST: Final = 10**9
"""Greatest limit of a key."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the server said of a public id."""

    key: ApiKey | None
    read_at: float
    """Monotonic seconds."""
    lost: ApiKey | None = None
    """What an absent key was when it was last there."""
    lost_at: float = 0.0
    """When its absence was first seen, monotonic seconds."""


class Authenticator:
    """Turns a key into a ``Caller``, or refuses. Remembers what the server said for a moment."""

    def __init__(self, wire: GatewayWire, pepper: bytes, clock: Clock, *, cache_s: float) -> None:
        """Raises ``ValueError`` for a pepper that is too short. A revoked key dies within
        ``cache_s``.
        """
        self._wire = wire
        self._pepper = tokens.check_pepper(pepper)
        self._clock = clock
        self._cache_s = cache_s
        self._known: dict[str, _Known] = {}

    async def bearer(self, header: bytes | str | None) -> Caller:
        """The caller behind an ``Authorization`` header's value. Raises ``InvalidApiKey`` and
        ``BackendUnavailable``.
        """
        if header is None:
            raise InvalidApiKey(NO_KEY)
        raw = header.encode("utf-8", "surrogateescape") if isinstance(header, str) else header
        scheme, _, token = raw.strip().partition(b" ")
        token = token.strip()
        if scheme.lower() != BEARER or not token:
            raise InvalidApiKey(NO_KEY)
        return await self.token(token)

    async def token(self, token: bytes) -> Caller:
        """The caller behind a bare key. Raises like ``bearer``."""
        parts = tokens.parse_token(token, self._pepper)
        if parts is None:
            raise InvalidApiKey(WRONG_KEY)
        known = await self._read(parts.public_id)
        key = known.key
        on_record = key or known.lost
        # An unknown id costs the same work as a wrong secret, and is answered alike.
        proved = hmac.compare_digest(
            tokens.digest(parts, self._pepper), NO_DIGEST if on_record is None else on_record.digest
        )
        if on_record is None or not proved:
            raise InvalidApiKey(WRONG_KEY)
        now_ms = self._clock.wall_ms()
        if on_record.revoked_ms is not None and on_record.revoked_ms <= now_ms:
            raise InvalidApiKey("The API key was revoked.")
        if on_record.expires_ms is not None and on_record.expires_ms <= now_ms:
            raise InvalidApiKey("The API key has expired.")
        if key is None:  # nobody gets in on an old word, but this is not the caller's fault
            raise BackendUnavailable(
                "The server has lost its API keys; they may come back.",
                retry_after_s=BACKEND_RETRY_S,
            )
        return Caller(
            key_id=key.public_id,
            tenant=key.tenant,
            band=key.band,
            scopes=key.scopes,
            models=key.models,
            max_concurrency=key.max_concurrency,
            requests_per_minute=key.requests_per_minute,
            tokens_per_minute=key.tokens_per_minute,
        )

    def require(self, caller: Caller, scope: Scope) -> None:
        """Raises ``PermissionDenied`` for a caller whose key lacks a scope."""
        if scope not in caller.scopes:
            raise PermissionDenied(f"This key lacks the scope {scope!r}.")

    async def _read(self, public_id: str) -> _Known:
        now = self._clock.monotonic()
        known = self._known.get(public_id)
        if known is not None and now - known.read_at < (
            min(self._cache_s, UNKNOWN_CACHE_S) if known.key is None else self._cache_s
        ):
            return known
        with transport_errors():
            key = None  # so is a damaged one: nobody gets in by it
            with self._wire.damaged.skipped("key", public_id):
                key = await self._wire.api_key(public_id)
            fresh = _Known(key, now)
            if key is None and known is not None:
                lost, lost_at = (known.key, now) if known.key else (known.lost, known.lost_at)
                if (
                    lost is not None
                    and now - lost_at < LOST_KEY_S
                    and not await self._wire.api_key_is_forgotten(public_id)
                ):
                    fresh = _Known(None, now, lost=lost, lost_at=lost_at)
        self._known.pop(public_id, None)
        self._known[public_id] = fresh
        if len(self._known) > CACHE_ENTRIES:  # somebody tries keys: forget the oldest
            del self._known[next(iter(self._known))]
        return fresh


class KeyTerms(TypedDict, total=False):
    """What a key may do. What is left out: the default tenant's, inference with every model, the
    usual band, for ever, without limits.
    """

    tenant: str
    scopes: Sequence[str]
    models: Sequence[str]
    band: int
    expires_ms: int | None
    max_concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None


class KeyStore:
    """The keys of a deployment, for those who administer them.

    A key is rotated by making a second one and revoking the first, at once or at a time to come,
    when its holder has changed over.
    """

    def __init__(self, wire: GatewayWire, pepper: bytes | None, clock: Clock) -> None:
        """Without a pepper no key can be made, adopted or proved. Raises ``ValueError`` for one
        that is too short.
        """
        self._wire = wire
        self._secret = None if pepper is None else tokens.check_pepper(pepper)
        self._clock = clock

    @property
    def _pepper(self) -> bytes:
        if self._secret is None:
            raise ValueError("the pepper of that deployment is needed")
        return self._secret

    async def create(self, *, name: str, **terms: Unpack[KeyTerms]) -> tuple[str, ApiKey]:
        """Makes a key. Its text is returned here, and is nowhere to be had again.

        Raises ``ValueError`` for what makes no sense.
        """
        text, token = tokens.make_token()
        return text, await self._put(token, name, terms)

    async def adopt(self, token: str, *, name: str, **terms: Unpack[KeyTerms]) -> ApiKey:
        """Takes a key that its owner chose. Again with the same one: the same key, renewed.

        Raises ``ValueError`` for one that is too short or is not printable ASCII.
        """
        text = token.strip("\r\n")
        parsed = tokens.parse_token(text.encode("utf-8", "replace"), self._pepper)
        if parsed is None:
            fault = tokens.check_adopted(text) or "its checksum is wrong"
            raise ValueError(f"this API key cannot be used: {fault}")
        return await self._put(parsed, name, terms)

    async def adopt_unless_known(
        self, token: str, *, name: str, scopes: Sequence[str] = ("inference",)
    ) -> bool:
        """Adopts a key that the server has never seen; False for one that it has, revoked or
        deleted or damaged or not.

        Raises like ``adopt``.
        """
        parsed = tokens.parse_token(token.strip("\r\n").encode("utf-8", "replace"), self._pepper)
        if parsed is not None:
            known = True  # of a damaged one nobody can tell whether it was revoked
            with self._wire.damaged.skipped("key", parsed.public_id):
                known = await self._wire.api_key(
                    parsed.public_id
                ) is not None or await self._wire.api_key_is_forgotten(parsed.public_id)
            if known:
                return False
        await self.adopt(token, name=name, scopes=scopes)
        return True

    def proves(self, key: ApiKey, token: tokens.Token) -> bool:
        """Whether a key of that id is this one, under this pepper."""
        return hmac.compare_digest(key.digest, tokens.digest(token, self._pepper))

    @property
    def unreadable(self) -> int:
        """How often a damaged key was left out of what was read here."""
        return self._wire.damaged.counts["key"]

    async def list(self) -> Sequence[ApiKey]:
        """Every key that can be read, the oldest first."""
        return sorted(await self._wire.api_keys(), key=lambda key: (key.created_ms, key.public_id))

    async def revoke(self, public_id: str, *, at_ms: int | None = None) -> bool:
        """Revokes a key now, or at a time to come; an end that it has is not put off. False: there
        is none of that id.
        """
        when = self._clock.wall_ms() if at_ms is None else at_ms
        return await self._wire.revoke_api_key(public_id, at_ms=when)

    async def forget(self, public_id: str) -> bool:
        """Deletes a key: its record goes, and no import brings it back. False: there is none."""
        return await self._wire.forget_api_key(public_id)

    async def forget_old(self) -> int:
        """Deletes every key that ended longer ago than keys are kept; how many."""
        over_ms = self._clock.wall_ms() - KEPT_OVER_MS
        return sum(
            [
                await self._wire.forget_api_key(key.public_id, over_ms=over_ms)
                for key in await self.list()
                if ended_before(key, over_ms)
            ]
        )

    async def export(self) -> bytes:
        """Every key that can be read, as JSON lines. Without the pepper they prove nothing; with it,
        keep them safe.
        """
        return b"".join(_encode(key) for key in await self.list())

    async def load(self, data: bytes) -> int:
        """Puts exported keys back; says how many. What was revoked since, or is meanwhile, stays
        revoked, and what was deleted stays away; one that is damaged is replaced, and is revoked now
        where nobody can tell whether it was. Raises ``ValueError``, for lines that are no exported
        keys before any is put.
        """
        keys = [_decode(line) for line in data.splitlines() if line.strip()]
        try:
            return sum([await self._wire.restore_api_key(key) for key in keys])
        except RecordRejected as error:
            raise ValueError(str(error)) from error

    async def _write(self, key: ApiKey) -> None:
        try:
            await self._wire.put_api_key(key)
        except RecordRejected as error:
            raise ValueError(str(error)) from error

    async def _put(self, token: tokens.Token, name: str, terms: KeyTerms) -> ApiKey:
        now_ms = self._clock.wall_ms()
        key = ApiKey(
            public_id=token.public_id,
            digest=tokens.digest(token, self._pepper),
            name=name,
            tenant=terms.get("tenant", "default"),
            scopes=frozenset(terms.get("scopes", ("inference",))),
            models=frozenset(terms.get("models", ())),
            created_ms=now_ms,
            expires_ms=terms.get("expires_ms"),
            revoked_ms=None,
            band=terms.get("band", DEFAULT_BAND),
            max_concurrency=terms.get("max_concurrency"),
            requests_per_minute=terms.get("requests_per_minute"),
            tokens_per_minute=terms.get("tokens_per_minute"),
        )
        _check(key, now_ms)
        await self._write(key)
        return key


def ended_before(key: ApiKey, at_ms: int) -> bool:
    """Whether a key was revoked, or had expired, before a time."""
    return any(end is not None and end < at_ms for end in (key.revoked_ms, key.expires_ms))


def _check(key: ApiKey, now_ms: int) -> None:
    """Raises ``ValueError``."""
    if not key.name.strip() or len(key.name) > 200:
        raise ValueError("a key needs a name of 1 to 200 characters")
    if not key.scopes or key.scopes - SCOPES:
        raise ValueError(f"scopes are some of {', '.join(sorted(SCOPES))}")
    if not 0 <= key.band < BANDS:
        raise ValueError(f"the band is 0 (most urgent) to {BANDS - 1}")
    if key.expires_ms is not None and key.expires_ms <= now_ms:
        raise ValueError("the key would have expired already")
    if key.expires_ms is not None and key.expires_ms - now_ms > LONGEST_MS:
        raise ValueError("a key expires within a hundred years, or never")
    for name, limit in (
        ("max_concurrency", key.max_concurrency),
        ("requests_per_minute", key.requests_per_minute),
        ("tokens_per_minute", key.tokens_per_minute),
    ):
        if limit is not None and not 1 <= limit <= MOST:
            raise ValueError(f"{name} is 1 to {MOST}")


def _encode(key: ApiKey) -> bytes:
    made: dict[str, object] = {
        "version": EXPORT_VERSION,
        "public_id": key.public_id,
        "digest": key.digest.hex(),
        "name": key.name,
        "tenant": key.tenant,
        "scopes": sorted(key.scopes),
        "models": sorted(key.models),
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "revoked_ms": key.revoked_ms,
        "band": key.band,
        "max_concurrency": key.max_concurrency,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
    }
    return json.dumps(made).encode() + b"\n"


def _decode(line: bytes) -> ApiKey:
    """Raises ``ValueError`` for a line that ``_encode`` did not write."""
    try:
        read = cast("dict[str, object]", json.loads(line))
        if read["version"] != EXPORT_VERSION:
            raise ValueError(f"version {read['version']!r} is not known here")
        key = ApiKey(
            public_id=_text(read["public_id"]),
            digest=bytes.fromhex(_text(read["digest"])),
            name=_text(read["name"]),
            tenant=_text(read["tenant"]),
            scopes=_names(read["scopes"]),
            models=_names(read["models"]),
            created_ms=_number(read["created_ms"]),
            expires_ms=_number_or_none(read["expires_ms"]),
            revoked_ms=_number_or_none(read["revoked_ms"]),
            band=_number(read["band"]),
            max_concurrency=_number_or_none(read["max_concurrency"]),
            # absent from what an earlier release exported
            requests_per_minute=_number_or_none(read.get("requests_per_minute")),
            tokens_per_minute=_number_or_none(read.get("tokens_per_minute")),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not an exported key: {error}") from error
    if len(key.digest) != 32:
        raise ValueError("not an exported key: its digest is damaged")
    return key


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number_or_none(value: object) -> int | None:
    return None if value is None else _number(value)


def _names(value: object) -> frozenset[str]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return frozenset(_text(item) for item in cast("list[object]", value))
