"""API keys of a deployment: the local stack's, or another one's through its Redis server."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from headrace_gateway.auth.keys import LONGEST_MS, KeyStore
from headrace_kit.clock import SystemClock
from headrace_transport.address import Access
from headrace_transport.interface import ApiKey

from headrace_cli.access import find_server, open_wire
from headrace_cli.errors import CommandFailed
from headrace_cli.state import StateDir

_SPAN: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """A server that holds keys, and what it takes to use it."""

    redis_url: str
    access: Access
    pepper: str | None
    """None: keys can be listed, revoked, exported and imported, and none can be made."""

    def __repr__(self) -> str:
        return f"KeyPlace({self.redis_url!r})"

    @classmethod
    def find(cls, redis_url: str | None, state: StateDir, environ: Mapping[str, str]) -> KeyPlace:
        """See ``find_server``."""
        return cls(*find_server(redis_url, state, environ))

    def check_pepper(self) -> None:
        """Raises CommandFailed where no key can be made."""
        if self.pepper is None:
            raise CommandFailed(
                "The pepper of that deployment is needed.",
                hint="Set HEADRACE_GATEWAY_PEPPER or HEADRACE_GATEWAY_PEPPER_FILE.",
            )

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[KeyStore]:
        """The keys there. Raises CommandFailed for a server that cannot be used."""
        try:
            async with open_wire(self.redis_url, self.access) as wire:
                pepper = None if self.pepper is None else self.pepper.encode()
                yield KeyStore(wire, pepper, SystemClock())
        except UnicodeEncodeError as error:  # bytes of an argument
            raise CommandFailed(f"{error.object!r} is not text.") from error
        except ValueError as error:
            raise CommandFailed(f"{error}.") from error


@dataclass(frozen=True, slots=True)
class KeyWish:
    """A key to be made. ``KeyStore.create`` checks it."""

    name: str
    tenant: str
    scopes: Sequence[str]
    models: Sequence[str]
    band: int
    expires: str | None
    """Like ``30d``; None: never."""
    max_concurrency: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None


async def create(place: KeyPlace, wish: KeyWish) -> None:
    """Makes a key: the key alone on standard output, what it may do on standard error."""
    place.check_pepper()
    expires_ms = None if wish.expires is None else now_ms() + span_ms(wish.expires)
    async with place.open() as keys:
        text, key = await keys.create(
            name=wish.name,
            tenant=wish.tenant,
            scopes=wish.scopes,
            models=wish.models,
            band=wish.band,
            expires_ms=expires_ms,
            max_concurrency=wish.max_concurrency,
            requests_per_minute=wish.requests_per_minute,
            tokens_per_minute=wish.tokens_per_minute,
        )
    print(text)
    print(f"{describe(key, now_ms())}\nIt is shown this once.", file=sys.stderr)


async def show(place: KeyPlace) -> None:
    """Lists the keys; secrets are nowhere to be had."""
    async with place.open() as keys:
        for key in await keys.list():
            print(describe(key, now_ms()))
        _check_all_read(keys)


async def revoke(place: KeyPlace, public_id: str, *, after: str | None) -> None:
    """Revokes a key, at once or after a while."""
    at_ms = None if after is None else now_ms() + span_ms(after)
    async with place.open() as keys:
        if not await keys.revoke(public_id, at_ms=at_ms):
            raise CommandFailed(
                f"There is no key {public_id}.", hint="`headrace keys list` shows the ids."
            )
    print(f"revoked {public_id}" if after is None else f"{public_id} ends within {after}")


async def forget(place: KeyPlace, public_id: str) -> None:
    """Deletes a key."""
    async with place.open() as keys:
        if not await keys.forget(public_id):
            raise CommandFailed(
                f"There is no key {public_id}.", hint="`headrace keys list` shows the ids."
            )
    print(f"deleted {public_id}")


async def export(place: KeyPlace, path: Path) -> None:
    """Every key, to ``write_export``. If some cannot be read, the others go to ``PATH.partial``, so
    that an earlier export stays, and CommandFailed is raised.
    """
    async with place.open() as keys:
        data = await keys.export()
        whole = not keys.unreadable or str(path) == "-"
        write_export(data, path if whole else path.with_name(f"{path.name}.partial"))
        _check_all_read(keys)


def write_export(data: bytes, path: Path) -> None:
    """Writes keys to a file of the owner's, or to standard output for ``-``. What a file held stays
    until all is written. Raises CommandFailed.
    """
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        return
    in_place = path.exists() and not path.is_file()  # a pipe, say, or a device
    target = path if in_place else path.resolve()
    fresh = target if in_place else target.with_name(f"{target.name}.{os.getpid()}")
    try:
        _write_own(data, fresh)
        fresh.replace(target)
    except OSError as error:
        if not in_place:
            fresh.unlink(missing_ok=True)
        raise CommandFailed(f"{path}: {error.strerror}.") from error
    print(f"wrote {_keys(len(data.splitlines()))} to {path}")


def _write_own(data: bytes, path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def read_export(path: Path) -> bytes:
    """What ``export`` wrote, from a file or from standard input for ``-``."""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror}.") from error


async def load(place: KeyPlace, data: bytes) -> None:
    """Puts exported keys back."""
    async with place.open() as keys:
        count = await keys.load(data)
    print(f"imported {_keys(count)}")


def _keys(count: int) -> str:
    return "1 key" if count == 1 else f"{count} keys"


def _check_all_read(keys: KeyStore) -> None:
    if keys.unreadable:
        raise CommandFailed(
            f"Keys that cannot be read, and are left out: {keys.unreadable}.",
            hint="The lines above name them; `headrace keys delete` takes their ids.",
        )


def span_ms(text: str) -> int:
    """``30d`` in milliseconds. Raises CommandFailed."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        raise CommandFailed(f"{text!r} is no span of time.", hint="Write 45m, 12h, 30d or 2w.")
    span = int(found[1]) * _UNIT_MS[found[2]]
    if span > LONGEST_MS:
        raise CommandFailed(f"{text!r} is more than a hundred years.")
    return span


def describe(key: ApiKey, at_ms: int) -> str:
    """One line about a key."""
    facts = [f"{key.public_id:16}", status(key, at_ms), f"tenant {key.tenant}"]
    facts.append(f"scopes {','.join(sorted(key.scopes))}")
    facts.append(f"models {','.join(sorted(key.models)) or 'all'}")
    facts.append(f"band {key.band}")
    if key.max_concurrency is not None:
        facts.append(f"at most {key.max_concurrency} at once")
    if key.requests_per_minute is not None:
        facts.append(f"{key.requests_per_minute} requests a minute")
    if key.tokens_per_minute is not None:
        facts.append(f"{key.tokens_per_minute} tokens a minute")
    facts.append(f"made {_day(key.created_ms)}")
    return "  ".join([*facts, repr(key.name)])


def status(key: ApiKey, at_ms: int) -> str:
    """What the key is worth at a time."""
    if key.revoked_ms is not None:
        return "revoked" if key.revoked_ms <= at_ms else f"ends {_day(key.revoked_ms)}"
    if key.expires_ms is not None:
        return "expired" if key.expires_ms <= at_ms else f"expires {_day(key.expires_ms)}"
    return "active"


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def _day(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):  # of another release, or by hand
        return f"{ms} ms"
