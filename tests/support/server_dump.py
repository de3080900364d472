"""Everything on a server as JSON, and back into another server.

Times and ids of stream entries are those of the server that was dumped. ``load`` moves them, as if
all had been written a moment ago, and ``undated`` takes them out.
"""

from __future__ import annotations

import re
import time
from typing import Any, Final, cast

from headrace_transport.options import WireOptions
from headrace_transport.replies import Reply, as_bytes, as_int, as_list, as_text
from headrace_transport.server import Server

Json = dict[str, Any]
OPTIONS: Final = WireOptions(op_timeout_s=20, connect_timeout_s=20)
LAPSES_MS: Final = 600_000
"""Of a key with a lifetime, after it was loaded."""


_TIME = re.compile(
    rb"(?<![0-9a-zA-Z])(?:(?P<ms>[12][0-9]{12})(?:(?P<n>-[0-9]+)|(?![0-9a-zA-Z]))"
    rb"|(?P<s>[12][0-9]{9})(?![0-9a-zA-Z]))"
)
"""Unix milliseconds, alone or as the id of a stream's entry, or seconds; in text or in a record."""
_HEX: Final = "hex:"


async def dump(url: str) -> Json:
    """Everything on a server: each key with its type, content, and whether it lapses."""
    server = Server(url, password=None, options=OPTIONS)
    names = sorted(as_bytes(name) for name in as_list(await server.command("KEYS", "*")))
    found: Json = {}
    for name in names:
        kind = as_text(await server.command("TYPE", name))
        lapses = as_int(await server.command("PTTL", name)) >= 0
        found[name.decode()] = {
            "type": kind,
            "lapses": lapses,
            **await _content(server, kind, name),
        }
    await server.close()
    return {"recorded_ms": int(time.time() * 1000), "keys": found}


async def _content(server: Server, kind: str, name: bytes) -> Json:
    async def texts(*command: str | bytes) -> list[str]:
        return [text_of(as_bytes(each)) for each in as_list(await server.command(*command))]

    match kind:
        case "string":
            return {"value": text_of(as_bytes(await server.command("GET", name)))}
        case "list":
            return {"values": await texts("LRANGE", name, "0", "-1")}
        case "set":
            return {"values": sorted(await texts("SMEMBERS", name))}
        case "hash":
            return {"values": _pairs(await texts("HGETALL", name))}
        case "zset":
            return {"values": _pairs(await texts("ZRANGE", name, "0", "-1", "WITHSCORES"))}
        case "stream":
            entries = as_list(await server.command("XRANGE", name, "-", "+"))
            groups = [
                dict(zip(map(_word, group[::2]), map(_word, group[1::2]), strict=True))
                for group in map(as_list, as_list(await server.command("XINFO", "GROUPS", name)))
            ]
            return {
                "entries": [
                    [_word(id_), [_word(part) for part in as_list(parts)]]
                    for id_, parts in map(as_list, entries)
                ],
                "groups": [
                    {
                        "name": group["name"],
                        "last": group["last-delivered-id"],
                        "pending": int(group["pending"]),
                    }
                    for group in groups
                ],
            }
        case _:
            raise AssertionError(f"{name!r} is a {kind}")


async def load(url: str, dumped: Json) -> None:
    """Puts a dump into an empty server, its times moved as if it had been taken just now."""
    moved = moved_to(dumped, int(time.time() * 1000))
    server = Server(url, password=None, options=OPTIONS)
    for text, content in cast("dict[str, Json]", moved["keys"]).items():
        name = text.encode()
        match content["type"]:
            case "string":
                await server.command("SET", name, bytes_of(content["value"]))
            case "list":
                await server.command("RPUSH", name, *map(bytes_of, content["values"]))
            case "set":
                await server.command("SADD", name, *map(bytes_of, content["values"]))
            case "hash":
                parts = [part for pair in content["values"].items() for part in map(bytes_of, pair)]
                await server.command("HSET", name, *parts)
            case "zset":
                scored = [
                    part
                    for member, score in content["values"].items()
                    for part in (bytes_of(score), bytes_of(member))
                ]
                await server.command("ZADD", name, *scored)
            case _:
                await _load_stream(server, name, content)
        if content["lapses"]:
            await server.command("PEXPIRE", name, LAPSES_MS)
    await server.close()


async def _load_stream(server: Server, name: bytes, content: Json) -> None:
    for id_, parts in content["entries"]:
        await server.command("XADD", name, id_, *map(bytes_of, parts))
    for group in content["groups"]:
        await server.command("XGROUP", "CREATE", name, group["name"], "0")
        if group["pending"]:
            count = str(group["pending"])
            reader = ("XREADGROUP", "GROUP", group["name"], group["name"], "COUNT", count)
            await server.command(*reader, "STREAMS", name, ">")
        await server.command("XGROUP", "SETID", name, group["name"], group["last"])


def moved_to(dumped: Json, now_ms: int) -> Json:
    """The same dump with every time as much later as ``now_ms`` is after its recording."""
    by = now_ms - int(dumped["recorded_ms"])

    def later(found: re.Match[bytes]) -> bytes:
        if found["s"]:
            return b"%d" % (int(found["s"]) + by // 1000)
        return b"%d%s" % (int(found["ms"]) + by, found["n"] or b"")

    def move(value: Any) -> Any:
        match value:
            case str():
                return text_of(_TIME.sub(later, bytes_of(value)))
            case list():
                return [move(each) for each in cast("list[object]", value)]
            case dict():
                pairs = cast("dict[str, object]", value)
                return {move(key): move(each) for key, each in pairs.items()}
            case _:
                return value

    return {"recorded_ms": now_ms, "keys": move(dumped["keys"])}


def undated(data: bytes) -> bytes:
    """Without times and without ids of entries; what counts in seconds is told apart."""
    return _TIME.sub(lambda found: b"<seconds>" if found["s"] else b"<time>", data)


def undated_keys(dumped: Json) -> Json:
    """A dump's keys, to compare with another's."""

    def without(value: Any) -> Any:
        match value:
            case str():
                return text_of(undated(bytes_of(value)))
            case list():
                return [without(each) for each in cast("list[object]", value)]
            case dict():
                pairs = cast("dict[str, object]", value)
                return {without(key): without(each) for key, each in pairs.items()}
            case _:
                return value

    return cast("Json", without(dumped["keys"]))


def _word(reply: Reply) -> str:
    return str(as_int(reply)) if isinstance(reply, int) else text_of(as_bytes(reply or b""))


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(sorted(zip(flat[::2], flat[1::2], strict=True)))


def text_of(data: bytes) -> str:
    """Bytes as JSON has them: as they are where one can read them, else in hex."""
    plain_text = data.isascii() and data.decode().isprintable()
    return data.decode() if plain_text else _HEX + data.hex()


def bytes_of(text: str) -> bytes:
    """The other way round."""
    return bytes.fromhex(text[len(_HEX) :]) if text.startswith(_HEX) else text.encode()
