"""A key's own requests: which of them live, and why one of them waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import httpx

from headrace_cli.endpoint import Endpoint, check, request_path
from headrace_cli.errors import CommandFailed

_HEAD: Final = ("ID", "MODEL", "STATUS", "REASON", "TOKENS", "AGE")


def list_live(endpoint: Endpoint, *, limit: int) -> None:
    """Prints the requests that have not ended, the newest first."""
    found = _get(endpoint, f"/v1/requests?limit={limit}")
    if not found["data"]:
        print("no live request of this key")
        return
    now = time.time()
    print(_table([_HEAD, *(_row(each, now) for each in found["data"])]))
    if found["has_more"]:
        print(f"and more than {limit}: --limit shows up to 100")


def why(endpoint: Endpoint, request_id: str) -> None:
    """Prints why a request waits, or that it does not."""
    found = _get(endpoint, f"{request_path(request_id)}/why")
    print(f"{found['status']}: {found['reason']}, {found['waited_seconds']:.1f} s since it came")
    print(found["explanation"])
    if found["engine"] is not None:
        print(f"engine: {found['engine']}")


def _get(endpoint: Endpoint, path: str) -> Any:
    with endpoint.client() as client:
        try:
            answer = client.get(path)
        except httpx.TransportError as error:
            raise CommandFailed(f"{endpoint.url} does not answer: {error}") from error
    check(answer)
    return answer.json()


def _row(request: Any, now: float) -> Sequence[str]:
    age = max(0, int(now - request["created"]))
    return (
        request["id"],
        request["model"],
        request["status"],
        request["reason"],
        str(request["tokens"]),
        f"{age} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
