"""One call from its fields to its answer: started, then collected or streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headrace_gateway.http.answers.parts import Choice
from headrace_gateway.http.context import context_of
from headrace_gateway.http.disconnect import while_connected
from headrace_gateway.http.errors import bad_request, ended_badly
from headrace_gateway.http.ports import Inference, RunningCall
from headrace_gateway.http.rates import rate_headers
from headrace_gateway.http.sse import Chunks, EventStream
from headrace_gateway.inference.calls import Call, Delta, Done, KeepAlive, OnceKey, UsageTotal
from headrace_gateway.inference.once import once_key

_DEADLINE_MS: Final = range(1, 24 * 3600 * 1000 + 1)
_NAMED_FIELDS: Final = 20
_ONCE: Final = re.compile(r"[ -~]{1,255}")
_UNFIT_FOR_HEADER: Final = re.compile(r"[^A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Manner:
    """How a route words its answers."""

    stream: bool
    body: Callable[[RunningCall, Mapping[int, Choice], UsageTotal], dict[str, object]]
    chunks: Callable[[RunningCall], Chunks]
    ignored: Sequence[str]
    """Unknown fields of the request."""


async def answer(request: Request, service: Inference, call: Call, manner: Manner) -> Response:
    """Starts the call and answers it. Nothing is sent before it is admitted and queued."""
    context = context_of(request.scope)
    context.id = call.request_id
    running = await service.start(call)
    context.generates = True
    context.span.set({"gen_ai.request.stream": manner.stream})
    headers = {**_ignored_header(manner.ignored), **rate_headers(running.rates)}
    if running.id != call.request_id:
        context.id = running.id
        headers["idempotent-replayed"] = "true"
    if manner.stream:
        return EventStream(running, manner.chunks(running), headers=headers)
    try:
        choices, usage = await while_connected(request.receive, _collect(running))
    finally:
        await running.aclose()
    body = orjson.dumps(manner.body(running, choices, usage))
    return Response(body, media_type="application/json", headers=headers)


def deadline_of(request: Request) -> float | None:
    """``x-headrace-deadline-ms``: from now, in seconds."""
    given = request.headers.get("x-headrace-deadline-ms")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 10) or (
        int(given) not in _DEADLINE_MS
    ):
        raise bad_request(
            f"x-headrace-deadline-ms must be between 1 and {_DEADLINE_MS[-1]}.",
            "x-headrace-deadline-ms",
        )
    return int(given) / 1000


def once_of(request: Request, body: Mapping[str, object]) -> OnceKey | None:
    """``Idempotency-Key``, with what it stands for: this route and this body."""
    all_given = request.headers.getlist("idempotency-key")
    if not all_given:
        return None
    given = all_given[0]
    if len(all_given) > 1:  # which of them would be meant?
        raise bad_request("Send one Idempotency-Key.", "Idempotency-Key")
    if not _ONCE.fullmatch(given):
        raise bad_request(
            "Idempotency-Key must be 1 to 255 printable ASCII characters.", "Idempotency-Key"
        )
    told = json.dumps(body, sort_keys=True)  # numbers may have more than 64 bits
    return once_key(given, f"{request.url.path}\n{told}".encode())


async def _collect(running: RunningCall) -> tuple[dict[int, Choice], UsageTotal]:
    """Everything a call says. Raises HttpError as soon as one choice has ended badly."""
    choices: dict[int, Choice] = {}
    async for event in running:
        match event:
            case Delta():
                choice = choices.setdefault(event.index, Choice())
                choice.text.append(event.text)
                choice.tokens.extend(event.tokens)
                if event.finish is not None:
                    choice.finish = event.finish
                    error = ended_badly(event.finish, event.code, event.message)
                    if error is not None:
                        raise error
            case KeepAlive():
                pass
            case Done():
                return choices, event.usage
    raise AssertionError("a call ends with Done or raises")


def _ignored_header(names: Sequence[str]) -> dict[str, str]:
    if not names:
        return {}
    shown = [_UNFIT_FOR_HEADER.sub("?", name[:64]) for name in names[:_NAMED_FIELDS]]
    return {"x-headrace-ignored": ", ".join(shown)}
