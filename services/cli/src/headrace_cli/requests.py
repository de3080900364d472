"""A key's own requests: which of them live, and why one of them waits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from headrace_cli.endpoint import Endpoint, check, request_path, understood

_HEAD: Final = ("ID", "MODEL", "STATUS", "REASON", "TOKENS", "AGE")


def list_live(endpoint: Endpoint, *, limit: int) -> None:
    """Prints the requests that have not ended, the newest first."""
    with understood(endpoint.url):
        found = _get(endpoint, f"/v1/requests?limit={limit}")
        now = time.time()
        rows = [_row(each, now) for each in found["data"]]
        more = found["has_more"]
    if not rows:
        print("no live request of this key")
        return
    print(_table([_HEAD, *rows]))
    if more:
        print(f"and more than {limit}: --limit shows up to 100")


def why(endpoint: Endpoint, request_id: str) -> None:
    """Prints why a request waits, or that it does not."""
    with understood(endpoint.url):
        found = _get(endpoint, f"{request_path(request_id)}/why")
        waited = f"{found['waited_seconds']:.1f} s since it came"
        lines = [f"{found['status']}: {found['reason']}, {waited}", str(found["explanation"])]
        if found["engine"] is not None:
            lines.append(f"engine: {found['engine']}")
    print("\n".join(lines))


def _get(endpoint: Endpoint, path: str) -> Any:
    with endpoint.client() as client:
        answer = client.get(path)
    check(answer)
    return answer.json()


def _row(request: Any, now: float) -> Sequence[str]:
    age = max(0, int(now - request["created"]))
    return (
        str(request["id"]),
        str(request["model"]),
        str(request["status"]),
        str(request["reason"]),
        str(request["tokens"]),
        f"{age} s",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
