"""Where the server is and how one gets in: one address, or sentinels that know the primary's; TLS.

``redis://[user@]host:port/db``, over TLS ``rediss://``; through sentinels
``redis+sentinel://[user@]host:port,host:port/service/db``, or ``rediss+sentinel://``.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self, cast
from urllib.parse import SplitResult, unquote, urlsplit

from redis import exceptions
from redis.asyncio import connection as redis_connection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from headrace_transport.channel import Handshake
from headrace_transport.errors import ServerUnsuitable
from headrace_transport.options import WireOptions

_SENTINELS: Final = re.compile(
    r"rediss?\+sentinel://(?:(?P<user>[^@/:]*)@)?(?P<nodes>[^@/]+)"
    r"/(?P<service>[^@/?#]+)(?:/(?P<db>[0-9]{1,9}))?/?"
)
_SCHEMES: Final = ("redis", "rediss", "redis+sentinel", "rediss+sentinel")
_PORT: Final = 6379
_DB: Final = re.compile(r"(?:/[0-9]{0,9}/?)?")
"""Path of a URL."""
_NODE: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]]+)):(?P<port>\d{1,5})")
_REMEDY: Final = (
    "write redis://host:port/db, or redis+sentinel://host:port,host:port/service/db; with rediss "
    "in place of redis for TLS, and in a password %23 %2F %3F %40 in place of # / ? @"
)


class Secret(Protocol):
    """A text that does not show itself."""

    def get_secret_value(self) -> str: ...


class AccessSettings(Protocol):
    """What a service's settings say about it."""

    @property
    def redis_ca_file(self) -> str | None: ...
    @property
    def redis_cert_file(self) -> str | None: ...
    @property
    def redis_key_file(self) -> str | None: ...


class AccessSecrets(Protocol):
    """What a service's secrets say about it."""

    @property
    def redis_password(self) -> Secret | None: ...
    @property
    def redis_sentinel_password(self) -> Secret | None: ...


@dataclass(frozen=True, slots=True)
class Access:
    """What it takes to be let in."""

    password: str | None = None
    sentinel_password: str | None = None
    """Of the sentinels themselves, where they want one."""
    ca_file: str | None = None
    """Authority that signed the server's certificate; the system's when absent."""
    cert_file: str | None = None
    key_file: str | None = None
    """A certificate of ours, for a server that asks for one."""

    def __repr__(self) -> str:
        return f"Access(ca_file={self.ca_file!r}, cert_file={self.cert_file!r})"

    @classmethod
    def of(cls, settings: AccessSettings, hidden: AccessSecrets) -> Self:
        """As a service was told."""
        return cls(
            password=_revealed(hidden.redis_password),
            sentinel_password=_revealed(hidden.redis_sentinel_password),
            ca_file=settings.redis_ca_file,
            cert_file=settings.redis_cert_file,
            key_file=settings.redis_key_file,
        )


class Address:
    """Makes connections to the server, wherever it is now."""

    def __init__(self, url: str, access: Access, options: WireOptions) -> None:
        """Connects nothing yet. Raises ``ServerUnsuitable`` for what names no server."""
        url = _with_plain_scheme(url)
        self._options = options
        self._sentinel: Sentinel | None = None
        self._service = ""
        self._arguments: dict[str, Any]
        found = _SENTINELS.fullmatch(url)
        if found is None:
            self._arguments = _parsed(url)
        else:
            self._arguments = {"db": int(found["db"] or 0)}
            if found["user"]:
                self._arguments["username"] = unquote(found["user"])
        tls = _tls_of(url, access)
        self._make = cast(
            "Callable[..., Handshake]",
            redis_connection.SSLConnection if tls else redis_connection.Connection,
        )
        self._arguments |= tls
        if access.password is not None:
            self._arguments["password"] = access.password
        if found is not None:
            self._service = unquote(found["service"])
            self._sentinel = self._watchers(_nodes(found["nodes"]), access, tls)

    @property
    def moves(self) -> bool:
        """Whether another server may be the primary at the next connection."""
        return self._sentinel is not None

    async def handshake(self) -> Handshake:
        """A connection to be opened. Raises what redis-py raises where no sentinel knows."""
        arguments: dict[str, Any] = self._arguments
        if self._sentinel is not None:
            host, port = await _primary(self._sentinel, self._service)
            arguments = {**arguments, "host": host, "port": port}
        if "host" in arguments:
            await _resolve(arguments["host"], arguments.get("port", _PORT))
        return self._make(
            **arguments,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=self._options.connect_timeout_s,
            client_name="headrace",
        )

    async def close(self) -> None:
        """Lets go of the sentinels."""
        if self._sentinel is not None:
            for watcher in self._sentinel.sentinels:
                await watcher.aclose()

    def _watchers(
        self, nodes: list[tuple[str, int]], access: Access, tls: Mapping[str, Any]
    ) -> Sentinel:
        arguments: dict[str, Any] = {
            "socket_timeout": self._options.op_timeout_s,
            "socket_connect_timeout": self._options.connect_timeout_s,
            "password": access.sentinel_password,
            "retry": Retry(NoBackoff(), 0),
            **({"ssl": True} if tls else {}),
            **tls,
        }
        return Sentinel(nodes, sentinel_kwargs=arguments)


async def _primary(sentinel: Sentinel, service: str) -> tuple[str, int]:
    """As ``discover_master``, which of those that do not answer tells all but why."""
    reasons: list[str] = []
    watchers = cast("list[Any]", sentinel.sentinels)
    is_up = cast("Callable[[dict[str, Any], str], bool]", sentinel.check_master_state)  # pyright: ignore[reportUnknownMemberType]
    for watcher in [*watchers]:
        try:
            known = cast("dict[str, dict[str, Any]]", await watcher.sentinel_masters())
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            reasons.append(str(error))
            continue
        state = known.get(service)
        if state is not None and is_up(state, service):
            watchers.sort(key=lambda each: each is not watcher)  # asked first the next time
            return state["ip"], state["port"]
        reasons.append("one that answers knows none of this name that is up")
    why = "; ".join(dict.fromkeys(reasons))
    raise exceptions.ConnectionError(f"no sentinel tells where the primary {service!r} is: {why}")


async def _resolve(host: str, port: int) -> None:
    """Raises ``OSError`` for a name that nobody knows. A connect that is given up while it looks for
    the name leaves its failure to the event loop, which tells of it when nobody asks any more.
    """
    loop = asyncio.get_running_loop()
    try:
        await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise OSError(f"{host}: {error.strerror}") from error
    except UnicodeError as error:  # before anybody is asked: a label of a name is empty or too long
        raise OSError(f"{host} is no host's name: {error}") from error


def _with_plain_scheme(url: str) -> str:
    """As ``urlsplit`` reads it, to which case, and white space around a URL or tabs and line ends in
    it, mean nothing: whether there is TLS must not hang on them.
    """
    scheme, colon, rest = re.sub(r"[\t\r\n]", "", url.strip()).partition(":")
    return scheme.lower() + colon + rest


def _parsed(url: str) -> dict[str, Any]:
    """redis-py's arguments. It passes over what it does not understand, which is refused here, in
    words of our own: its may repeat a part of a password.
    """
    try:
        parts = urlsplit(url)
        wrong = _wrong(parts)
        parsed = dict(redis_connection.parse_url(url)) if wrong is None else {}
    except ValueError:
        raise ServerUnsuitable("redis_url is not understood", _REMEDY) from None
    if wrong is not None:
        raise ServerUnsuitable(f"redis_url {wrong}", _REMEDY)
    parsed.pop("connection_class", None)
    return cast("dict[str, Any]", parsed)


def _wrong(parts: SplitResult) -> str | None:
    """What is wrong with a URL of one server, or with one of sentinels that was not understood."""
    if parts.scheme == "unix":
        return "names a Unix socket: a server is reached over TCP"
    if parts.scheme not in _SCHEMES:
        return "does not begin with redis:// or rediss://"
    if not parts.netloc.rpartition("@")[2]:
        return "names no host"
    if parts.query or parts.fragment:
        return "has options behind a ? or #, which are not read: the database belongs into the path"
    if parts.scheme.endswith("+sentinel"):
        if parts.password is not None:
            return "has a password, which sentinels' URLs do not: set the redis_password secret"
        return "is not understood"
    if not parts.hostname or parts.port == 0:
        return "names no host and port"
    if not _DB.fullmatch(parts.path):
        return "has a path that is no database's number"
    return None


def _nodes(text: str) -> list[tuple[str, int]]:
    nodes: list[tuple[str, int]] = []
    for part in text.split(","):
        node = _NODE.fullmatch(part)
        if node is None or not 0 < int(node["port"]) < 65_536:
            raise ServerUnsuitable(f"redis_url: {part!r} is no sentinel's host:port", _REMEDY)
        nodes.append((node["v6"] or node["host"], int(node["port"])))
    return nodes


def _tls_of(url: str, access: Access) -> dict[str, Any]:
    """redis-py's arguments for TLS; none without it. Files that cannot be used are refused now."""
    files = {
        "redis_ca_file": ("ssl_ca_certs", access.ca_file),
        "redis_cert_file": ("ssl_certfile", access.cert_file),
        "redis_key_file": ("ssl_keyfile", access.key_file),
    }
    given = {name: each for name, each in files.items() if each[1] is not None}
    if not url.startswith("rediss"):
        if given:
            raise ServerUnsuitable(
                f"{' and '.join(given)} is set, and redis_url does without TLS",
                "write rediss:// in place of redis://",
            )
        return {}
    if (access.cert_file is None) != (access.key_file is None):
        raise ServerUnsuitable(
            "of redis_cert_file and redis_key_file only one is set", "set both, or neither"
        )
    for name, (_, path) in given.items():
        if path is not None and not Path(path).is_file():
            raise ServerUnsuitable(f"{name}: {path} is no file", "mount it, or correct the path")
    return {"ssl_cert_reqs": "required", **dict(given.values())}


def _revealed(secret: Secret | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
