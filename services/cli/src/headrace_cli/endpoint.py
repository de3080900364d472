"""Where the API is and with which key: flags, then the environment, then the local stack."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import httpx

from headrace_cli.errors import CommandFailed, no_stack
from headrace_cli.state import StateDir

TIMEOUT: Final = httpx.Timeout(30.0, read=600.0)
"""Seconds. A first token may take long under load."""
MAX_ID: Final = 256


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An API that commands talk to."""

    url: str
    """Without ``/v1`` and without a slash at the end."""
    key: str

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    @classmethod
    def find(
        cls, url: str | None, key: str | None, state: StateDir, environ: Mapping[str, str]
    ) -> Endpoint:
        """Raises CommandFailed when neither is named and no local stack runs."""
        running = state.running_now()
        base = url or environ.get("HEADRACE_URL") or (running.urls[0] if running else None)
        if base is None:
            raise no_stack("--url", "HEADRACE_URL and HEADRACE_API_KEY")
        own = running is not None and base.rstrip("/") in running.urls
        stored = state.read(state.key_file.name) if own else None
        found = key or environ.get("HEADRACE_API_KEY") or _key_file(environ) or stored
        if found is None:
            raise CommandFailed(
                f"There is no API key for {base}.",
                hint="Give --api-key, or set HEADRACE_API_KEY or HEADRACE_API_KEY_FILE.",
            )
        check_url(base)
        if not (found.isascii() and found.isprintable()):
            raise CommandFailed("The API key holds what no key has: keys are printable ASCII.")
        return cls(base.rstrip("/").removesuffix("/v1"), found)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def client(self) -> httpx.Client:
        """A client with the key; closed by its user."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=TIMEOUT)

    def async_client(self, *, connections: int) -> httpx.AsyncClient:
        """The same, for many requests at once."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        return httpx.AsyncClient(
            base_url=self.url, headers=self.headers, timeout=TIMEOUT, limits=limits
        )


@contextmanager
def understood(url: str) -> Generator[None]:
    """Around asking an API and reading what it says. Raises CommandFailed where it does not answer,
    and where something else does.
    """
    try:
        yield
    except httpx.RequestError as error:
        raise CommandFailed(f"{url} does not answer: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CommandFailed(
            f"{url} answers, but not as Headrace does: {error!r}", hint="Is it another program's?"
        ) from error


def request_path(request_id: str) -> str:
    """Where a request is at the API. Raises CommandFailed for what can be no id."""
    if not 0 < len(request_id) <= MAX_ID:
        raise CommandFailed(f"A request's id has 1 to {MAX_ID} characters.")
    return f"/v1/requests/{quote(request_id, safe='')}"


def check_url(url: str) -> None:
    """Raises CommandFailed for what nobody can be asked at."""
    try:
        parsed = httpx.URL(url)
        parsed.host.encode("idna")  # as it is when it is looked up
    except (httpx.InvalidURL, UnicodeError) as error:
        raise CommandFailed(f"{url} is no address of an API: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CommandFailed(f"{url} is no address of an API.", hint="Write http://host:port.")


def _key_file(environ: Mapping[str, str]) -> str | None:
    path = environ.get("HEADRACE_API_KEY_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise CommandFailed(f"HEADRACE_API_KEY_FILE: {path}: {error.strerror}.") from error


def first_model(client: httpx.Client) -> str:
    """The first served model's name. Raises CommandFailed."""
    with understood(str(client.base_url)):
        response = client.get("/v1/models")
        check(response)
        models = cast("dict[str, list[dict[str, object]]]", response.json())["data"]
        if not models:
            raise CommandFailed(f"{client.base_url} serves no model.")
        return str(models[0]["id"])


def check(response: httpx.Response) -> None:
    """Raises CommandFailed with the API's own words for a refusal. The body must be read."""
    if not response.is_success:
        raise CommandFailed(f"HTTP {response.status_code}: {error_message(response.text)}")


def error_message(body: str) -> str:
    """The message in an error body; the body itself if it is none of ours."""
    try:
        parsed: object = json.loads(body)
    except ValueError:
        return body[:500]
    if isinstance(parsed, dict):
        error: object = cast("dict[str, object]", parsed).get("error")
        if isinstance(error, dict):
            return str(cast("dict[str, object]", error).get("message"))
    return body[:500]


def event(line: str) -> dict[str, object] | None:
    """The object in one line of an event stream; None for comments, blanks and the end."""
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return None
    try:
        parsed: object = json.loads(data)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise CommandFailed(f"The stream holds what is no event: {data[:200]}")
    if "error" in parsed:
        raise CommandFailed(error_message(data))
    return cast("dict[str, object]", parsed)


def texts(chunk: Mapping[str, object]) -> Iterator[str]:
    """The new text of each choice in a chat or completions chunk."""
    for choice in cast("list[dict[str, object]]", chunk.get("choices", [])):
        delta = choice.get("delta")
        text = choice.get("text")
        if isinstance(delta, dict):
            text = cast("dict[str, object]", delta).get("content")
        if isinstance(text, str) and text:
            yield text
