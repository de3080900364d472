"""Reads a request's body and makes a JSON object of it, or refuses it with the reason."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, cast

import orjson
from headrace_contracts.codes import Code
from starlette.datastructures import Headers
from starlette.requests import Request

from headrace_gateway.http.errors import ClientLeft, HttpError, bad_request

MAX_DEPTH: Final = 64
"""Levels of arrays and objects in each other."""

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_OR_NAME: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?', re.DOTALL)
_NAME_END: Final = re.compile(rb'"\s*:')
"""Ends every name; inside strings it may be found as well, so this count is a quick upper bound."""
_DIAGNOSED_BYTES: Final = 256 * 1024
"""Larger bodies are refused without naming the place: finding it would hold up others."""
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NUL_ESCAPE: Final = re.compile(rb"\\u0000")
_UNFIT: Final = re.compile("[\x00\ud800-\udfff]")


async def json_object(request: Request, *, max_bytes: int, timeout_s: float) -> dict[str, object]:
    """The body as a JSON object.

    Raises HttpError: 408, 413, 415, else 400 with ``param`` where a place can be named.
    """
    _check_headers(request.headers)
    raw = await _read(request, max_bytes=max_bytes, timeout_s=timeout_s)
    return parse_object(raw)


def parse_object(raw: bytes) -> dict[str, object]:
    """Strict JSON: no NaN or infinity, no key twice, no lone surrogate, no NUL, bounded depth.

    Takes milliseconds for megabytes, since it runs on the event loop.
    """
    if not raw.strip():
        raise bad_request("The body is empty; a JSON object is needed.")
    try:
        value: object = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _diagnosis(raw, error.msg) from None
    if not isinstance(value, dict):
        raise bad_request("The body must be a JSON object.")
    found = cast(dict[str, object], value)
    kept = _names_kept(found)
    if kept != len(_NAME_END.findall(raw)) and kept != _names_written(raw):
        raise _diagnosis(raw, "a name stands twice in one object")
    if _NUL_ESCAPE.search(raw):
        _check_text(found, ())
    return found


def _check_headers(headers: Headers) -> None:
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    kind = kind.strip()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise _wrong_type("Send the body as JSON, with Content-Type: application/json.")
    charset = re.search(r'charset\s*=\s*"?([^\s";]*)', parameters)
    if charset and charset[1] not in {"utf-8", "utf8"}:
        raise _wrong_type("Send the body in UTF-8.")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise _wrong_type("Send the body without a Content-Encoding.")


def _wrong_type(message: str) -> HttpError:
    return HttpError(Code.INVALID_REQUEST, message, status=415)


async def _read(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
                more = bool(message.get("more_body", False))
    except TimeoutError:
        raise HttpError(
            Code.BODY_TIMEOUT, f"The body did not arrive within {timeout_s:g} seconds."
        ) from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> HttpError:
    return HttpError(Code.BODY_TOO_LARGE, f"The body is larger than {max_bytes} bytes.")


def _check_depth(raw: bytes) -> None:
    """Looks at brackets outside of strings only; the parser then judges the rest."""
    depth = 0
    for bracket in _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS):
        if bracket in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep()
        else:
            depth -= 1


def _names_written(raw: bytes) -> int:
    """Names in the text of valid JSON. Strings are matched too, so that none is taken for one."""
    return sum(map(bool, _STRING_OR_NAME.findall(raw)))


def _names_kept(found: dict[str, object]) -> int:
    """Names in the parsed value: fewer than were written if one stood twice.

    Raises HttpError for a value that is too deep, since it is walked level by level.
    """
    kept = depth = 0
    level: list[object] = [found]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep()
        below: list[object] = []
        for value in level:
            if isinstance(value, dict):
                items = cast(dict[str, object], value)
                kept += len(items)
                below += items.values()
            else:
                below += cast(list[object], value)
        level = [value for value in below if type(value) is dict or type(value) is list]
    return kept


def _diagnosis(raw: bytes, reason: str) -> HttpError:
    """Why a body was refused, found by reading it again, slowly and with an eye to the place."""
    if len(raw) <= _DIAGNOSED_BYTES:
        try:
            _check_depth(raw)
            text = raw.decode("utf-8")
            value: object = json.loads(
                text,
                object_pairs_hook=_object,
                parse_constant=_refuse_constant,
                parse_float=_finite,
            )
            _check_text(value, ())
        except UnicodeDecodeError as error:
            return bad_request(f"The body is not UTF-8: bad byte at {error.start}.")
        except json.JSONDecodeError as error:
            return bad_request(
                f"The body is not JSON: {error.msg} at line {error.lineno} column {error.colno}."
            )
        except HttpError as error:
            return error
        except ValueError:
            return bad_request("The body holds a number with too many digits.")
    return bad_request(f"The body is not JSON: {reason}.")


def _too_deep() -> HttpError:
    return bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise bad_request(f"The body holds {name!a} twice in one object.", name)
        seen.add(name)
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise bad_request(f"The body holds {name}, which is not JSON.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise bad_request("The body holds a number too large for a 64-bit float.")
    return number


def _check_text(value: object, place: tuple[str | int, ...]) -> None:
    """Finds the string that holds a NUL or half of a surrogate pair."""
    if isinstance(value, str):
        if _UNFIT.search(value):
            raise bad_request(
                "This string holds a NUL or half of a surrogate pair.", place_name(place)
            )
    elif isinstance(value, Mapping):
        for name, item in cast(Mapping[str, object], value).items():
            _check_text(name, place)
            _check_text(item, (*place, name))
    elif isinstance(value, Sequence):
        for index, item in enumerate(cast(Sequence[object], value)):
            _check_text(item, (*place, index))


def place_name(place: Sequence[str | int]) -> str | None:
    """``("messages", 0, "content")`` as ``messages[0].content``."""
    name = ""
    for step in place:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{step}" if name else step
    return name or None
