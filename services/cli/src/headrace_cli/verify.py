"""Whether a deployment does what it promises: keys, streams, resuming, cancelling, limits, metrics.

Each check is one function that says what it saw, and raises ``CommandFailed`` where it is not so.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import httpx
from headrace_engine.metrics import EngineMetrics
from headrace_gateway.metrics import GatewayMetrics
from headrace_kit.metrics import Registry
from headrace_transport.errors import AccessDenied, TransportUnavailable

from headrace_cli.endpoint import Endpoint, check, check_url, event, first_model, texts
from headrace_cli.errors import CommandFailed
from headrace_cli.keys import KeyPlace
from headrace_cli.state import StateDir

T = TypeVar("T")

PROMPT: Final = "The letters of the alphabet: A B C D E F"
LONG: Final = 2000
"""Tokens of a request that is not meant to reach its end, where the context allows as many."""
CANCEL_S: Final = 10.0
"""How long a cancelled request may take to be shown as such."""
CONNECT_S: Final = 15.0
"""How long engines and the server may be out of reach: network policies let a pod that has just begun,
as that of ``helm test``, through to others a moment later."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is looked at."""

    endpoint: Endpoint
    model: str | None = None
    """The first one that is served when absent."""
    max_tokens: int = 48
    key_place: KeyPlace | None = None
    """Where a key with a limit can be made; without it limits are not checked."""
    engine_metrics: str | None = None
    """Address of an engine's port; without it its metrics are not checked."""


@dataclass
class Stream:
    """What a stream has said so far."""

    id: str = ""
    cursors: list[str] = field(default_factory=list[str])
    pieces: list[str] = field(default_factory=list[str])
    """The text that came with each cursor."""
    finish: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def key_place(
    url: str | None, redis_url: str | None, state: StateDir, environ: Mapping[str, str]
) -> KeyPlace | None:
    """The server of the deployment whose API is looked at; None where nobody names it.

    The local stack's API is looked at with the local stack's server, whatever server the environment
    names, and another API never with it. Raises CommandFailed.
    """
    if redis_url is None and not (url or environ.get("HEADRACE_URL")):
        return KeyPlace.find(None, state, {})
    named = redis_url or environ.get("HEADRACE_GATEWAY_REDIS_URL")
    return KeyPlace.find(named, state, environ) if named else None


def run(plan: Plan, say: Callable[[str], None] = print) -> bool:
    """Runs every check, says how each went, and whether all went well."""
    checks: list[tuple[str, Callable[[], str]]] = [
        ("keys", lambda: check_keys(plan)),
        ("stream and resume", lambda: check_stream(plan)),
        ("cancel", lambda: check_cancel(plan)),
        ("limit", lambda: check_limit(plan)),
        ("gateway metrics", lambda: check_gateway_metrics(plan)),
        ("engine metrics", lambda: check_engine_metrics(plan)),
    ]
    good = True
    for name, look in checks:
        try:
            say(f"ok    {name}: {look()}")
        except (CommandFailed, httpx.HTTPError, TransportUnavailable) as error:
            good = False
            say(f"FAIL  {name}: {error or type(error).__name__}")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            good = False
            say(f"FAIL  {name}: what answers does not answer as Headrace does: {error!r}")
    return good


def check_keys(plan: Plan) -> str:
    """No key and a wrong one are refused; ours opens."""
    with plan.endpoint.client() as client:
        for headers in ({"Authorization": ""}, {"Authorization": "Bearer no-key-of-this-place"}):
            answer = client.get("/v1/models", headers=headers)
            if answer.status_code != 401:
                raise CommandFailed(f"a call without a valid key got {answer.status_code}, not 401")
        return f"401 without one, and with ours there is {first_model(client)}"


def check_stream(plan: Plan) -> str:
    """A stream comes in pieces; read again from its middle, the rest is the same."""
    with plan.endpoint.client() as client:
        with _started(client, plan, plan.max_tokens) as lines:
            whole = _read(lines)
        if whole.finish not in ("stop", "length"):
            raise CommandFailed(f"the stream {whole.id} ended as {whole.finish!r}")
        middle = len(whole.cursors) // 2
        after = whole.cursors[middle - 1] if middle else "0"
        path = f"/v1/requests/{whole.id}/events"
        with client.stream("GET", path, params={"after": after}) as answer:
            if not answer.is_success:
                answer.read()
            check(answer)
            rest = _read(answer.iter_lines())
    if "".join(whole.pieces[:middle]) + rest.text != whole.text:
        raise CommandFailed(f"resumed after {after}, {whole.id} went on as {rest.text!r}")
    return f"{len(whole.pieces)} pieces, and the last {len(rest.pieces)} of them again"


def check_cancel(plan: Plan) -> str:
    """A running request is cancelled by its id, and its stream ends."""
    with plan.endpoint.client() as client, _started(client, plan, _long(client, plan)) as lines:
        stream = _read(lines, until_text=True)
        answer = client.delete(f"/v1/requests/{stream.id}")
        check(answer)
        if answer.json().get("cancelled") is not True:
            raise CommandFailed(f"{stream.id} had ended before it could be cancelled")
        _read(lines, cancelled=True)
        until = time.monotonic() + CANCEL_S
        while (state := _state(client, stream.id)) != "cancelled":
            if time.monotonic() > until:
                raise CommandFailed(f"{stream.id} was cancelled and is shown as {state}")
            time.sleep(0.1)
    return f"{stream.id} ended after {len(stream.pieces)} pieces, and is shown as cancelled"


def check_limit(plan: Plan) -> str:
    """A key for one request at once gets 429 for the second, and is told when to come back."""
    if plan.key_place is None:
        return "not looked at: it takes --redis-url, and the deployment's secrets"
    place = plan.key_place
    key, public_id = _in_time(lambda: asyncio.run(_limited_key(place)), TransportUnavailable)
    limited = Endpoint(plan.endpoint.url, key)
    try:
        with limited.client() as client, _started(client, plan, _long(client, plan)) as lines:
            stream = _read(lines, until_text=True)
            answer = client.post("/v1/completions", json=_body(client, plan, 4))
            client.delete(f"/v1/requests/{stream.id}")
    finally:
        asyncio.run(_forget(place, public_id))
    if answer.is_success and stream.finish is not None:
        raise CommandFailed(f"{stream.id} was over before a second request could be refused")
    if answer.status_code != 429:
        raise CommandFailed(f"a second request of one allowed got {answer.status_code}, not 429")
    wait = answer.headers.get("retry-after", "")
    if not wait.isdigit() or int(wait) < 1:
        raise CommandFailed(f"429 came with the Retry-After {wait!r}")
    return f"429, to come back in {wait} s"


def check_gateway_metrics(plan: Plan) -> str:
    """Every declared metric is served."""
    registry = Registry("gateway")
    GatewayMetrics(registry)
    with plan.endpoint.client() as client:
        answer = client.get("/metrics")
    check(answer)
    return _compare((made.name for made in registry.declared()), answer.text)


def check_engine_metrics(plan: Plan) -> str:
    """The same for engines."""
    if plan.engine_metrics is None:
        return "not looked at: it takes --engine-metrics"
    registry = Registry("engine")
    EngineMetrics(registry)
    check_url(plan.engine_metrics)
    url = f"{plan.engine_metrics.rstrip('/')}/metrics"
    answer = _in_time(lambda: httpx.get(url, timeout=10), httpx.ConnectError, httpx.ConnectTimeout)
    check(answer)
    return _compare((made.name for made in registry.declared()), answer.text)


def _in_time(attempt: Callable[[], T], *unreachable: type[Exception]) -> T:
    """What the attempt gives, which is made again while its other side cannot be reached."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            return attempt()
        except AccessDenied:
            raise
        except unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _compare(declared: Iterable[str], exposition: str) -> str:
    wanted = set(declared)
    served = set(re.findall(r"^# TYPE (\S+) ", exposition, re.MULTILINE))
    if missing := sorted(wanted - served):
        raise CommandFailed(f"not served: {', '.join(missing)}")
    return f"all {len(wanted)} are there"


def _body(client: httpx.Client, plan: Plan, max_tokens: int) -> dict[str, object]:
    return {
        "model": plan.model or first_model(client),
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


def _long(client: httpx.Client, plan: Plan) -> int:
    """Many tokens, as far as the model's context goes."""
    answer = client.get(f"/v1/models/{plan.model or first_model(client)}")
    check(answer)
    context = answer.json().get("max_model_len")
    return min(LONG, int(context) // 2) if isinstance(context, int) else plan.max_tokens


@contextmanager
def _started(client: httpx.Client, plan: Plan, max_tokens: int) -> Generator[Iterator[str]]:
    with client.stream("POST", "/v1/completions", json=_body(client, plan, max_tokens)) as answer:
        if not answer.is_success:
            answer.read()
        check(answer)
        yield answer.iter_lines()


def _read(lines: Iterator[str], *, until_text: bool = False, cancelled: bool = False) -> Stream:
    """Reads to the end, or only to the first text. A cancelled stream may end with an error."""
    stream, cursor = Stream(), ""
    for line in lines:
        if line.startswith("id:"):
            cursor = line.removeprefix("id:").strip()
        try:
            chunk = event(line)
        except CommandFailed:
            if cancelled:
                break
            raise
        if chunk is None:
            continue
        stream.id = str(chunk["id"])
        text = "".join(texts(chunk))
        if cursor:
            stream.cursors.append(cursor)
            stream.pieces.append(text)
            cursor = ""
        elif text:
            raise CommandFailed(f"a piece of {stream.id} came without an id line")
        for choice in cast("list[dict[str, object]]", chunk.get("choices", [])):
            stream.finish = cast("str | None", choice.get("finish_reason")) or stream.finish
        if until_text and text:
            break
    if not stream.id and not cancelled:
        raise CommandFailed("the stream ended before its first event")
    return stream


def _state(client: httpx.Client, request_id: str) -> str:
    answer = client.get(f"/v1/requests/{request_id}")
    check(answer)
    shown = answer.json()
    return str(shown.get("finish_reason") or shown.get("status"))


async def _limited_key(place: KeyPlace) -> tuple[str, str]:
    place.check_pepper()
    async with place.open() as keys:
        text, key = await keys.create(name="headrace verify", max_concurrency=1)
    return text, key.public_id


async def _forget(place: KeyPlace, public_id: str) -> None:
    async with place.open() as keys:
        await keys.forget(public_id)
